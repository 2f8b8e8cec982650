"""Whether the policy of a bucket allows the readers that ACLs allow to read the files of topics, and no others.

Compares the document alone: policies of roles, access points and block public access are not in it. Guards one promise,
that no difference is missed for want of knowledge: a right under a condition counts as given where it would be too
much, and as missing where it is needed; a denial under a condition (unless by TLS, for example) counts as none; and a
statement that is not understood is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.cli.acl_export import Grants, parse_s3_location, s3_key, with_metadata
from bus.cli.failures import Failure
from bus.model import ROOT_MARKER
from bus.records.json_text import parse_strict

_GET, _LIST = "s3:GetObject", "s3:ListBucket"
_WRITES = ("s3:PutObject", "s3:DeleteObject")
_EVERYONE = "*"
_NOT_COMPARED = ("NotPrincipal", "NotAction", "NotResource")


@dataclass(frozen=True, slots=True)
class _Statement:
    """Patterns as IAM has them. `prefixes`: of the keys that it lets list; None: of all."""

    number: int
    is_allowing: bool
    principals: frozenset[str]
    actions: Sequence[str]
    resources: Sequence[str]
    prefixes: Sequence[str] | None
    has_conditions: bool  # beside those on prefixes

    def names(self, principal: str) -> bool:
        return principal in self.principals or _EVERYONE in self.principals

    def patterns(self, action: str, bucket: str) -> Sequence[str]:
        """Of the keys that it is about, with the ARN of the bucket before them."""
        if not any(_matches(pattern.lower(), action.lower()) for pattern in self.actions):
            return ()
        if action != _LIST:
            return self.resources
        if not any(_matches(pattern, bucket) for pattern in self.resources):
            return ()
        return [f"{bucket}/{prefix}" for prefix in (("*",) if self.prefixes is None else self.prefixes)]


class PolicyCheck:
    """`brokers`: principals that may do everything. Raises `Failure` for what is no policy, or no place of a bucket."""

    def __init__(self, document: str, location: str, brokers: Collection[str] = ()) -> None:
        self._bucket, self._prefix = parse_s3_location(location)
        self._brokers = brokers
        self._statements, self._not_compared = _parse(document)

    def differences(self, grants: Grants, topics: Iterable[str], *, tables_only: bool) -> Iterator[str]:
        """A line for each difference, by topic and principal, and for each statement that is not understood."""
        yield from self._not_compared
        asked_for = {name: set(of if tables_only else with_metadata(of)) for name, of in grants.readers.items()}
        for name in asked_for:
            if not tables_only and not self._is_given(
                name, _GET, f"{self._bucket}/{s3_key(self._prefix, ROOT_MARKER)}"
            ):
                yield f"{name}: expected {_GET} on {s3_key(self._prefix, ROOT_MARKER)}, found none"
        for topic in sorted(topics):
            key = f"{self._bucket}/{s3_key(self._prefix, f'topics/{topic}/')}"
            for name, wanted in asked_for.items():
                yield from self._missing(name, key) if topic in wanted else ()
            for name in self._principals(grants):
                is_reader = topic in asked_for.get(name, ())
                actions = _WRITES if is_reader else (_GET, _LIST, *_WRITES)
                yield from self._excess(name, actions, key, with_everyone=topic in grants.denied.get(name, ()))

    def _principals(self, grants: Grants) -> Sequence[str]:
        named = {name for one in self._statements if one.is_allowing for name in one.principals}
        return sorted((named | grants.denied.keys()) - set(self._brokers))

    def _missing(self, name: str, key: str) -> Iterator[str]:
        for action in (_GET, _LIST):
            if not self._is_given(name, action, key, is_folder=True):
                yield f"{name}: expected {action} on {self._show(key)}, found none for all of it"

    def _is_given(self, name: str, action: str, key: str, *, is_folder: bool = False) -> bool:
        about = [one for one in self._statements if one.names(name)]
        is_allowed = any(
            one.is_allowing and not one.has_conditions and self._is_about_all(one, action, key, is_folder)
            for one in about
        )
        return is_allowed and not any(
            not one.is_allowing
            and not one.has_conditions
            and any(_reaches(pattern, key) for pattern in one.patterns(action, self._bucket))
            for one in about
        )

    def _excess(self, name: str, actions: Iterable[str], key: str, *, with_everyone: bool) -> Iterator[str]:
        """`with_everyone`: also what the principal may as everyone may."""
        for action in actions:
            if any(
                not one.is_allowing
                and not one.has_conditions
                and one.names(name)
                and self._is_about_all(one, action, key, is_folder=True)
                for one in self._statements
            ):
                continue
            found = next(
                (
                    one.number
                    for one in self._statements
                    if one.is_allowing
                    and (name in one.principals or (with_everyone and one.names(name)))
                    and any(_reaches(pattern, key) for pattern in one.patterns(action, self._bucket))
                ),
                None,
            )
            if found is not None:
                yield f"{name}: expected no {action} on {self._show(key)}, found one in statement {found}"

    def _is_about_all(self, statement: _Statement, action: str, key: str, is_folder: bool) -> bool:
        covers = _covers if is_folder else _matches
        return any(covers(pattern, key) for pattern in statement.patterns(action, self._bucket))

    def _show(self, key: str) -> str:
        return f"{key.removeprefix(f'{self._bucket}/')}*"


# ------------------------------------------------------------------ patterns


def _ends(pattern: str, text: str) -> set[int]:
    """Where in the pattern one can be once `text` is read; `*` stands for any text, `?` for a character."""
    states = _past_stars(pattern, {0})
    for character in text:
        read = {at for at in states if at < len(pattern) and pattern[at] == "*"}
        read |= {at + 1 for at in states if at < len(pattern) and pattern[at] in ("?", character)}
        states = _past_stars(pattern, read)
    return states


def _past_stars(pattern: str, states: set[int]) -> set[int]:
    found = set(states)
    for at in states:
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            found.add(at)
    return found


def _matches(pattern: str, text: str) -> bool:
    return len(pattern) in _ends(pattern, text)


def _reaches(pattern: str, beginning: str) -> bool:
    """Whether it matches any text that begins so."""
    return bool(_ends(pattern, beginning))


def _covers(pattern: str, beginning: str) -> bool:
    """Whether it matches every text that begins so."""
    return any(pattern[at:] and not pattern[at:].strip("*") for at in _ends(pattern, beginning))


# ------------------------------------------------------------------ the document


def _parse(document: str) -> tuple[list[_Statement], list[str]]:
    """And a line for each statement that is not understood. Raises `Failure`."""
    try:
        found = parse_strict(document)
    except ValueError as error:
        raise Failure(f"--policy: expected the JSON of a bucket's policy, found other text: {error}") from None
    listed = found.get("Statement") if isinstance(found, dict) else None
    listed = [listed] if isinstance(listed, dict) else listed
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Failure('--policy: expected the JSON of a bucket\'s policy, {"Statement": [...]}, found other JSON')
    statements, not_compared = [], []
    for number, one in enumerate(listed, start=1):
        strange = _strange_part(one)
        if strange is None:
            statements.append(_statement(number, one))
        else:
            not_compared.append(f"statement {number}: expected what can be compared, found {strange}")
    return statements, not_compared


def _strange_part(statement: Mapping[str, Any]) -> str | None:
    for name in _NOT_COMPARED:
        if name in statement:
            return name
    if statement.get("Effect") not in ("Allow", "Deny"):
        return "an Effect that is neither Allow nor Deny"
    for name in ("Action", "Resource"):
        if not _texts(statement.get(name)):
            return f"{name} that is no text and no list of texts"
    if any("${" in text for text in _texts(statement["Resource"])):
        return "a variable in Resource"
    return None if _principals(statement.get("Principal")) else "a Principal of another form"


def _statement(number: int, found: Mapping[str, Any]) -> _Statement:
    conditions = found.get("Condition") or {}
    conditions = conditions if isinstance(conditions, dict) else {"": conditions}
    prefixes, has_conditions = None, False
    for operator, about in conditions.items():
        if operator in ("StringLike", "StringEquals") and isinstance(about, dict) and about.keys() == {"s3:prefix"}:
            prefixes = [*(prefixes or []), *_texts(about["s3:prefix"])]
        else:
            has_conditions = True
    return _Statement(
        number,
        found["Effect"] == "Allow",
        frozenset(_principals(found.get("Principal"))),
        _texts(found["Action"]),
        _texts(found["Resource"]),
        prefixes,
        has_conditions,
    )


def _principals(found: Any) -> list[str]:
    """Services and canonical users are shown with their kind."""
    if not isinstance(found, dict):
        return [_EVERYONE] if found == _EVERYONE else []
    names: list[str] = []
    for kind, values in found.items():
        names += [value if kind == "AWS" or value == _EVERYONE else f"{kind} {value}" for value in _texts(values)]
    return names


def _texts(found: Any) -> list[str]:
    """One or several; empty: it is neither."""
    if isinstance(found, str):
        return [found]
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []
