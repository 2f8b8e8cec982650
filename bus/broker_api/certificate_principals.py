"""The principal of a caller with a certificate, by the rules of `bus.settings.login_settings`.

Guards three promises: where a rule asks for SPIFFE ids, a certificate with several URIs, one of them a SPIFFE id, has
no principal (X.509-SVID, section 2), even if another rule matches it; no certificate makes its owner `User:ANONYMOUS`,
`User:*` or a user without a name; and no name holds the event loop, whatever the pattern, since names are bounded and
patterns are those of RE2, whose time is linear in the name. So lookarounds and backreferences, which Java has, are
refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bus.security.acls import PRINCIPAL_TYPE, RESERVED_NAMES
from bus.settings.login_settings import (
    TRUST_DOMAIN,
    DefaultRule,
    MappingRule,
    PatternRule,
    SpiffeRule,
    parse_mapping_rules,
    unreadable,
)

NAME_CHARACTERS_MAX = 2_048
_REMEMBERED_MAX = 1_024  # certificates: each call of a connection shows the same
_GROUP = re.compile(r"\$([0-9])")
_SPIFFE_SCHEME = "spiffe://"
_SPIFFE_ID = re.compile(rf"{_SPIFFE_SCHEME}({TRUST_DOMAIN})((?:/[a-zA-Z0-9._-]+)+)")


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a client. `name`: the distinguished one, as RFC 2253 writes it; it may be empty. `uris`: of
    its alternative names."""

    name: str
    uris: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPrincipal:
    reason: str


_Apply = Callable[[Certificate], str | None]  # the name that a rule makes; None: it is not about the certificate


class PrincipalRules:
    def __init__(self, text: str) -> None:
        """Raises `ConfigError`."""
        rules = parse_mapping_rules(text)
        self._asks_for_ids = any(isinstance(rule, SpiffeRule) for rule in rules)
        self._rules: Sequence[_Apply] = [_applied(rule) for rule in rules]
        self.principal_of = functools.lru_cache(_REMEMBERED_MAX)(self._principal_of)

    def _principal_of(self, shown: Certificate) -> str | NoPrincipal:
        """`User:<name>`, or why there is none."""
        if len(shown.name) > NAME_CHARACTERS_MAX:
            return NoPrincipal(
                f"expected a certificate whose name has at most {NAME_CHARACTERS_MAX} characters, found "
                f"{len(shown.name)}"
            )
        has_id = any(uri.lower().startswith(_SPIFFE_SCHEME) for uri in shown.uris)
        if self._asks_for_ids and has_id and len(shown.uris) > 1:
            return NoPrincipal(f"a certificate with a SPIFFE id names it alone, found {len(shown.uris)} URIs")
        for apply in self._rules:
            mapped = apply(shown)
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


def _applied(rule: MappingRule) -> _Apply:
    match rule:
        case DefaultRule():
            return lambda shown: shown.name or None
        case SpiffeRule(trust_domain):
            return functools.partial(_spiffe_id, trust_domain)
        case PatternRule(_, _, _, case):
            replace = _replacing(rule)
            return lambda shown: None if (mapped := replace(shown.name)) is None else _in_case(mapped, case)


def _replacing(rule: PatternRule) -> Callable[[str], str | None]:
    """Return the function that makes another name of a name, or None of one that the pattern does not match as a whole.
    Raises `ConfigError`."""
    whole = rf"\A(?:{rule.pattern})\z"
    replacement = _GROUP.sub(r"\\\1", rule.replacement.replace("\\", "\\\\"))

    def replace(name: str) -> str | None:
        names = pa.array([name])
        if not name or not pc.match_substring_regex(names, whole)[0].as_py():
            return None
        replaced: str = pc.replace_substring_regex(names, whole, replacement)[0].as_py()
        return replaced

    try:
        pc.match_substring_regex(pa.array([""]), rule.pattern)  # by itself, too: it may close what `whole` opens
        pc.replace_substring_regex(pa.array([""]), whole, replacement)
    except pa.ArrowInvalid as error:
        raise unreadable(rule.text, str(error)) from None
    return replace


def _in_case(name: str, case: str) -> str:
    return {"L": name.lower(), "U": name.upper()}.get(case, name)


def _spiffe_id(trust_domain: str | None, shown: Certificate) -> str | None:
    """Return the SPIFFE id of a certificate, which has one URI at most."""
    found = next(iter(shown.uris), "")
    domain = _trust_domain(found)
    return found if domain is not None and trust_domain in (None, domain) else None


def _trust_domain(uri: str) -> str | None:
    """Return the trust domain of a SPIFFE id; None of any other text."""
    match = _SPIFFE_ID.fullmatch(uri)
    if match is None or len(uri) > NAME_CHARACTERS_MAX or {".", ".."} & set(match[2].split("/")):
        return None
    return match[1]
