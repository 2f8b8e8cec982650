"""Who a caller is: the name of a certificate as a principal, by Kafka's rules (ssl.principal.mapping.rules, KIP-371).

Rules are separated by commas: `RULE:pattern/replacement/` with `L` or `U` behind it for small letters or capitals, and
`DEFAULT`, the name as it is. The first rule whose pattern matches the whole name decides. A slash in a pattern is
written `\\/`; `$1` in a replacement is the first group of the pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bus.config.keys import ConfigError

_TEXT = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_TEXT}/{_TEXT}/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\$([0-9])")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""  # L, U or nothing

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = match.expand(self.replacement)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)


class PrincipalRules:
    def __init__(self, text: str) -> None:
        """Raises `ConfigError`."""
        self._rules: list[_Rule] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise _unreadable(text[position:])
            self._rules.append(_rule(found))
            position = found.end()
        if not self._rules:
            raise _unreadable(text)

    def principal_of(self, name: str) -> str | None:
        """`User:<name>` for the distinguished name of a certificate; None if no rule is about it."""
        for rule in self._rules:
            mapped = rule.apply(name)
            if mapped is not None:
                return f"User:{mapped}"
        return None


def _rule(found: re.Match[str]) -> _Rule:
    if found[1]:
        return _Rule(None)
    replacement = _GROUP.sub(r"\\g<\1>", found[3].replace("\\", "\\\\"))
    try:
        pattern = re.compile(found[2])
        pattern.sub(replacement, "")
        if any(int(group) > pattern.groups for group in _GROUP.findall(found[3])):
            raise _unreadable(found[0])
    except re.error:
        raise _unreadable(found[0]) from None
    return _Rule(pattern, replacement, found[4])


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"ssl.principal.mapping.rules: expected DEFAULT or RULE:pattern/replacement/[LU], with commas between rules, "
        f"found {text!r}"
    )
