"""A check that a statement only reads, made by the engine's own parser.

Guards one promise: no statement that passes `check_reads_only` writes a file, makes or changes a table, a setting or a
secret, or reads anything beside the tables that the session has. The type of a statement does not tell: `COPY` may be
the body of a CTE of a SELECT, the subject of EXPLAIN ANALYZE or a string that `query()` parses. So the syntax tree is
looked through, for nodes that are no queries and for table functions that are not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, zip_longest

import duckdb

# The analysis of a statement before it runs finds the topics that it names, and the places where `offset` is the
# column. It works on the engine's own tokens, so comments and strings never count. It finds too many topics rather than
# too few: an alias that is spelled like a topic creates a view that nobody reads, which costs nothing else.

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
    """Return the name as a statement spells it: in double quotes if it is no plain word."""
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


_QUERIES = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
# In the text of the tree, quotes inside of strings are escaped: no string of a statement looks like these.
_NODE = re.compile(r'"type":"(\w+_NODE)"')
_FUNCTION = re.compile(r'"function_name":"((?:[^"\\]|\\.)*)"')

# They make rows out of their arguments, or tell of the session's own catalog. All others are refused: most read files,
# some change settings, and `query` takes a statement as a string.
_TABLE_FUNCTIONS = frozenset(
    {
        "duckdb_columns",
        "duckdb_constraints",
        "duckdb_databases",
        "duckdb_functions",
        "duckdb_keywords",
        "duckdb_schemas",
        "duckdb_tables",
        "duckdb_types",
        "duckdb_views",
        "generate_series",
        "histogram",
        "histogram_values",
        "icu_calendar_names",
        "json_each",
        "json_tree",
        "pg_timezone_names",
        "pragma_collations",
        "pragma_show",
        "pragma_table_info",
        "pragma_version",
        "range",
        "repeat",
        "repeat_row",
        "summary",
        "test_all_types",
        "unnest",
    }
)
_EXPECTED = "expected one statement that reads: SELECT, EXPLAIN, DESCRIBE, SHOW or SUMMARIZE"


class NotReadOnly(ValueError):
    """A statement that does more than to read the tables of its session, or none, or several."""


def check_reads_only(session: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement:
    """The one statement of `query`. Raises `NotReadOnly`, or `duckdb.ParserException`."""
    statement = _one_statement(session, query)
    subject = _subject_of_explain(session, query)
    _check_query(session, statement if subject is None else subject)
    return statement


def _one_statement(session: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement:
    statements = session.extract_statements(query)
    if len(statements) != 1:
        raise NotReadOnly(f"{_EXPECTED}; found {len(statements) or 'none'}" + (" of them" if statements else ""))
    return statements[0]


def _check_query(session: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    query = statement.query
    if statement.type not in _QUERIES:
        raise NotReadOnly(f"{_EXPECTED}; found {_name_of(statement)}: a bus is written by its broker alone")
    if statement.type is duckdb.StatementType.MULTI:
        nodes, functions = _parts_of_pivot(session, query)
    else:
        nodes, functions = _parts_of_select(session, query)
    for node in nodes:
        if node not in _QUERY_NODES:
            found = node.removesuffix("_NODE").removesuffix("_QUERY")
            raise NotReadOnly(f"{_EXPECTED}; found {found} inside of it: a bus is written by its broker alone")
    for function in functions:
        if function not in _TABLE_FUNCTIONS and function in _table_functions():
            raise NotReadOnly(f"expected topics and views to read from, found the table function {function}")


def _parts_of_select(session: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], set[str]]:
    """The types of the query nodes in the tree, and the names of all functions."""
    # The tree stays text: a sum of a thousand terms is nested deeper than Python's parser can follow.
    [(tree,)] = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    if tree.startswith('{"error":true'):
        raise NotReadOnly(f"{_EXPECTED}; found one that the engine cannot describe: {tree}")
    return _NODE.findall(tree), {name.casefold() for name in _FUNCTION.findall(tree)}


def _parts_of_pivot(session: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], set[str]]:
    """The same of a PIVOT whose values are looked up, for which the engine gives no tree.

    Where a query can stand in parentheses, nothing else can; and the body of a CTE, which may be something else, is
    always a whole statement in parentheses.
    """
    spoken = list(tokens(query))
    while spoken and spoken[-1].text == ";":
        spoken.pop()
    end = spoken[-1].start + len(spoken[-1].text) + 2 * spoken[-1].is_quoted
    _one_statement(session, f"SELECT * FROM (\n{query[:end]}\n)")
    inner = [_type_of(session, text) for text in _in_parentheses(query, spoken)]
    nodes = [kind.name for kind in inner if kind is not None and kind not in _QUERIES]
    called = [token for token, following in pairwise(spoken) if following.text == "("]
    return [f"{name}_QUERY_NODE" for name in nodes], {token.text.casefold() for token in called}


def _in_parentheses(query: str, spoken: Sequence[Token]) -> Iterator[str]:
    opened: list[int] = []
    for token in spoken:
        if token.is_quoted:
            continue
        if token.text == "(":
            opened.append(token.start + 1)
        elif token.text == ")" and opened:
            yield query[opened.pop() : token.start]


def _type_of(session: duckdb.DuckDBPyConnection, text: str) -> duckdb.StatementType | None:
    """None: no statement."""
    try:
        statements = session.extract_statements(text)
    except duckdb.Error:
        return None
    return statements[0].type if statements else None


def _subject_of_explain(session: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement | None:
    """The statement behind EXPLAIN, ANALYZE and options in parentheses; None if it is no EXPLAIN."""
    spoken = list(tokens(query))
    if spoken[0].is_quoted or spoken[0].text.casefold() != "explain":
        return None
    rest = spoken[1:]
    if rest and rest[0].text.casefold() == "analyze":
        rest = rest[1:]
    subject = query[rest[0].start :] if rest else ""
    if rest and rest[0].text == "(" and _type_of(session, subject) is None:
        closing = next(token for token in rest if token.text == ")")
        subject = query[closing.start + 1 :]
    return _one_statement(session, subject)


@cache
def _table_functions() -> frozenset[str]:
    """Return the engine's table functions: the engine refuses any other name where a table should be."""
    kinds = "('table', 'table_macro', 'pragma')"
    with duckdb.connect() as engine:
        found = engine.execute(
            f"SELECT function_name FROM duckdb_functions() WHERE function_type IN {kinds}"
        ).fetchall()
    return frozenset(name.casefold() for (name,) in found)


def _name_of(statement: duckdb.Statement) -> str:
    """Return the type of the statement as SQL spells it: LOAD, EXPORT, MERGE INTO."""
    return str(statement.type.name).replace("_", " ")
