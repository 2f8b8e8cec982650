"""What a statement says before it runs: which topics it names, and where `offset` is the column.

Works on the engine's own tokens, so comments and strings never count. Names more topics rather than fewer: an alias
that is spelled like a topic makes a view that is not read, which costs nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import duckdb

_BEFORE_A_TABLE = frozenset(
    {"from", "join", "table", "describe", "desc", "show", "summarize", "pivot", "unpivot", ",", "("}
)


class AmbiguousName(ValueError):
    """Two topics are meant by one statement whose names differ in case only."""


@dataclass(frozen=True, slots=True)
class Token:
    start: int
    text: str
    is_name: bool  # an identifier or a keyword; most keywords may be the name of a table
    is_quoted: bool


def topics_named(query: str, topics: Collection[str]) -> set[str]:
    """Those of `topics` that the statement names; SQL's names do not tell upper from lower case, topics do.

    An exact match counts before another case. Raises `AmbiguousName`: one statement cannot see two topics whose names
    differ in case only.
    """
    by_folded: dict[str, list[str]] = {}
    for topic in topics:
        by_folded.setdefault(topic.casefold(), []).append(topic)
    found: dict[str, str] = {}
    for token in tokens(query):
        name = token.text.replace('""', '"') if token.is_quoted else token.text
        candidates = by_folded.get(name.casefold(), []) if token.is_name else []
        if not candidates:
            continue
        if name not in candidates and len(candidates) > 1:
            raise AmbiguousName(f"expected one of {', '.join(sorted(candidates))}, found {name}")
        topic = name if name in candidates else candidates[0]
        other = found.setdefault(topic.casefold(), topic)
        if other != topic:
            raise AmbiguousName(f"expected {other} or {topic}, found both in one statement: names differ in case only")
    return set(found.values())


def views_named(query: str, views: Collection[str], schema: str) -> list[str]:
    """Those of `views` that the statement may read: named where a table can stand, alone or in `schema`.

    Less generous than `topics_named`, since making such a view looks into many tables: a function, a field or an alias
    of that name does not count.
    """
    spoken = [Token(0, "", False, False), Token(0, "", False, False), *tokens(query), Token(0, "", False, False)]
    found = []
    for before, previous, token, following in zip(spoken, spoken[1:], spoken[2:], spoken[3:], strict=False):
        is_function = following.text == "("
        is_in_schema = previous.text == "." and before.text.casefold() == schema
        is_place = is_in_schema or previous.text.casefold() in _BEFORE_A_TABLE
        if token.is_name and token.text.casefold() in views and is_place and not is_function:
            found.append(token.text.casefold())
    return list(dict.fromkeys(found))


def quote_offset(query: str) -> str:
    """The statement with the column `offset` quoted, which SQL reserves for `LIMIT n OFFSET m`.

    The clause is always followed by a number, a parameter or a parenthesis, the column never is.
    """
    parts = []
    end = 0
    spoken = list(tokens(query))
    for token, following in zip_longest(spoken, spoken[1:]):
        if token.is_name and not token.is_quoted and token.text.casefold() == "offset":
            is_clause = following is not None and (following.text[0].isdigit() or following.text[0] in "?$(")
            if not is_clause:
                parts += [query[end : token.start], f'"{token.text}"']
                end = token.start + len(token.text)
    return "".join([*parts, query[end:]])


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_if_odd(name: str) -> str:
    """As it is written in a statement: in double quotes if it is no plain word."""
    return name if name.isidentifier() else quote_name(name)


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def tokens(query: str) -> Iterator[Token]:
    """The tokens of a statement without its comments. Positions are the engine's, which counts UTF-8 bytes."""
    raw = query.encode()
    found = duckdb.tokenize(query)
    ends = [start for start, _ in found[1:]] + [len(raw)]
    for (start, kind), end in zip(found, ends, strict=True):
        if kind is duckdb.token_type.comment:
            continue
        text = raw[start:end].decode(errors="replace").strip()
        if not text:
            continue
        is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
        yield Token(
            start=len(raw[:start].decode(errors="replace")),
            text=text[1:-1] if is_quoted else text,
            is_name=kind in (duckdb.token_type.identifier, duckdb.token_type.keyword),
            is_quoted=is_quoted,
        )
