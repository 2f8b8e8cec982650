"""How the certificates of clients name them (ssl.principal.mapping.rules), as a list of rules.

Rules are separated by commas; the first one that is about a certificate decides. Kafka's (KIP-371) are about its
distinguished name: `RULE:pattern/replacement/` with `L` or `U` behind it for small letters or capitals, if the pattern
matches the whole name, and `DEFAULT`, the name as it is. A slash in a pattern is written `\\/`; `$1` in a replacement
is the first group of the pattern. `SPIFFE` is about certificates with a SPIFFE id, which is then the name, and
`SPIFFE:domain` about those of one trust domain. Patterns are not looked at here: `bus.broker_api.principals` applies
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bus.config.keys import ConfigError

TRUST_DOMAIN = r"[a-z0-9._-]{1,255}"
_TEXT = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|(?P<spiffe>SPIFFE(?::({TRUST_DOMAIN}))?)|RULE:{_TEXT}/{_TEXT}/([LU]?))\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class DefaultRule:
    """The distinguished name as it is."""


@dataclass(frozen=True, slots=True)
class PatternRule:
    text: str  # as it is written
    pattern: str
    replacement: str
    case: str  # L, U or nothing


@dataclass(frozen=True, slots=True)
class SpiffeRule:
    trust_domain: str | None  # None: any


MappingRule = DefaultRule | PatternRule | SpiffeRule


def parse_mapping_rules(text: str) -> Sequence[MappingRule]:
    """One at least. Raises `ConfigError`."""
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise unreadable(text[position:])
        rules.append(_rule(found))
        position = found.end()
    if not rules:
        raise unreadable(text)
    return rules


def _rule(found: re.Match[str]) -> MappingRule:
    if found["default"]:
        return DefaultRule()
    if found["spiffe"]:
        return SpiffeRule(found[3])
    return PatternRule(found[0].strip(" ,"), found[4], found[5], found[6])


def unreadable(text: str, reason: str = "") -> ConfigError:
    return ConfigError(
        "ssl.principal.mapping.rules: expected DEFAULT, SPIFFE, SPIFFE:trust.domain or RULE:pattern/replacement/[LU], "
        f"with commas between rules, found {text!r}{reason and f': {reason}'}"
    )
