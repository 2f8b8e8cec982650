"""Who a caller is: what its certificate says as a principal, by rules (ssl.principal.mapping.rules).

Rules are separated by commas; the first one that is about a certificate decides. Kafka's (KIP-371) are about its
distinguished name: `RULE:pattern/replacement/` with `L` or `U` behind it for small letters or capitals, if the pattern
matches the whole name, and `DEFAULT`, the name as it is. A slash in a pattern is written `\\/`; `$1` in a replacement
is the first group of the pattern. `SPIFFE` is about certificates with a SPIFFE id, which is then the name, and
`SPIFFE:domain` about those of one trust domain. Guards two promises: where a rule asks for SPIFFE ids, a certificate
with several URIs, one of them a SPIFFE id, has no principal (X.509-SVID, section 2), even if another rule matches it;
and no certificate makes its owner `User:ANONYMOUS`, `User:*` or a user without a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bus.authorization.acls import PRINCIPAL_TYPE, RESERVED_NAMES
from bus.config.keys import ConfigError

_TEXT = r"((?:\\.|[^\\/])*)"
_TRUST_DOMAIN = r"[a-z0-9._-]{1,255}"
_RULE = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|(?P<spiffe>SPIFFE(?::({_TRUST_DOMAIN}))?)|RULE:{_TEXT}/{_TEXT}/([LU]?))\s*(?:,|$)"
)
_GROUP = re.compile(r"\$([0-9])")
_SPIFFE_SCHEME = "spiffe://"
_SPIFFE_ID = re.compile(rf"{_SPIFFE_SCHEME}({_TRUST_DOMAIN})((?:/[a-zA-Z0-9._-]+)+)")
_SPIFFE_ID_CHARACTERS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a client has shown. `name`: the distinguished one, as RFC 2253 writes it; it may be empty. `uris`: of its
    alternative names."""

    name: str
    uris: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NoPrincipal:
    reason: str


@dataclass(frozen=True, slots=True)
class _NameRule:
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""  # L, U or nothing

    def apply(self, shown: Certificate) -> str | None:
        name = shown.name
        if not name or self.pattern is None:
            return name or None
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = match.expand(self.replacement)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)


@dataclass(frozen=True, slots=True)
class _SpiffeRule:
    trust_domain: str | None  # None: any

    def apply(self, shown: Certificate) -> str | None:
        """Of a certificate with one URI at most."""
        found = next(iter(shown.uris), "")
        domain = _trust_domain(found)
        return found if domain is not None and self.trust_domain in (None, domain) else None


class PrincipalRules:
    def __init__(self, text: str) -> None:
        """Raises `ConfigError`."""
        self._rules: list[_NameRule | _SpiffeRule] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise _unreadable(text[position:])
            self._rules.append(_rule(found))
            position = found.end()
        if not self._rules:
            raise _unreadable(text)
        self._asks_for_ids = any(isinstance(rule, _SpiffeRule) for rule in self._rules)

    def principal_of(self, shown: Certificate) -> str | NoPrincipal:
        """`User:<name>`, or why there is none."""
        has_id = any(uri.lower().startswith(_SPIFFE_SCHEME) for uri in shown.uris)
        if self._asks_for_ids and has_id and len(shown.uris) > 1:
            return NoPrincipal(f"a certificate with a SPIFFE id names it alone, found {len(shown.uris)} URIs")
        for rule in self._rules:
            mapped = rule.apply(shown)
            if mapped is not None:
                return _principal(mapped, shown)
        uris = f" and the URI {', '.join(map(repr, shown.uris))}" if shown.uris else ""
        return NoPrincipal(f"no rule of ssl.principal.mapping.rules is about a certificate of {shown.name!r}{uris}")


def _principal(mapped: str, shown: Certificate) -> str | NoPrincipal:
    if mapped in RESERVED_NAMES or not mapped.strip():
        return NoPrincipal(
            f"ssl.principal.mapping.rules make the name {mapped!r} of a certificate of {shown.name!r}, which no single "
            "user may have"
        )
    return f"{PRINCIPAL_TYPE}:{mapped}"


def _trust_domain(uri: str) -> str | None:
    """Of a SPIFFE id; None of any other text."""
    match = _SPIFFE_ID.fullmatch(uri)
    if match is None or len(uri) > _SPIFFE_ID_CHARACTERS_MAX or {".", ".."} & set(match[2].split("/")):
        return None
    return match[1]


def _rule(found: re.Match[str]) -> _NameRule | _SpiffeRule:
    if found["default"]:
        return _NameRule(None)
    if found["spiffe"]:
        return _SpiffeRule(found[3])
    written, text, case = found[4], found[5], found[6]
    replacement = _GROUP.sub(r"\\g<\1>", text.replace("\\", "\\\\"))
    try:
        pattern = re.compile(written)
        pattern.sub(replacement, "")
        if any(int(group) > pattern.groups for group in _GROUP.findall(text)):
            raise _unreadable(found[0])
    except re.error:
        raise _unreadable(found[0]) from None
    return _NameRule(pattern, replacement, case)


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"ssl.principal.mapping.rules: expected DEFAULT, SPIFFE, SPIFFE:trust.domain or RULE:pattern/replacement/[LU], "
        f"with commas between rules, found {text!r}"
    )
