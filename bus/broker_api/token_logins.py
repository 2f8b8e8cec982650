"""Checks tokens of an identity provider against the keys that are known now."""

from __future__ import annotations

from bus.oauth.messages import NoToken, check_form
from bus.ports import Clock
from bus.runtime.users.key_directory import KeyDirectory
from bus.users.bearer_tokens import AcceptedToken, RejectedToken, TokenRules, UnknownKey, check_token

__all__ = ["AcceptedToken", "RejectedToken", "TokenLogins"]


class TokenLogins:
    def __init__(self, keys: KeyDirectory, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock

    async def check(self, token: str) -> AcceptedToken | RejectedToken:
        """Waits for the provider only if the token names an unknown key."""
        try:
            check_form(token)
        except NoToken as error:
            return RejectedToken(str(error))
        found = self._check(token)
        if isinstance(found, UnknownKey):
            await self._keys.look()
            found = self._check(token)
        return RejectedToken(found.reason) if isinstance(found, UnknownKey) else found

    def _check(self, token: str) -> AcceptedToken | RejectedToken | UnknownKey:
        return check_token(token, self._keys.keys, self._rules, now_s=self._clock.now_ms() / 1000)

    def life_ms(self, accepted: AcceptedToken) -> int:
        """How long a login by it lasts from now; at least 1."""
        return max(1, int(accepted.expires_s * 1000) - self._clock.now_ms())
