"""Which statements may run: one that reads, judged by the engine's own parser.

Guards one promise: no statement that passes `check_reads_only` writes a file, makes or changes a table, a setting or a
secret, or reads anything beside the tables that the session has. The type of a statement does not tell: `COPY` may be
the body of a CTE of a SELECT, the subject of EXPLAIN ANALYZE or a string that `query()` parses. So the syntax tree is
looked through, for nodes that are no queries and for table functions that are not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import duckdb

from bus.sql.statement import Token, tokens

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
    # As text, not as objects: a sum of a thousand terms is nested deeper than Python's parser goes.
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
    """All that the engine has: a name that is none of them is refused by the engine where a table should be."""
    kinds = "('table', 'table_macro', 'pragma')"
    with duckdb.connect() as engine:
        found = engine.execute(
            f"SELECT function_name FROM duckdb_functions() WHERE function_type IN {kinds}"
        ).fetchall()
    return frozenset(name.casefold() for (name,) in found)


def _name_of(statement: duckdb.Statement) -> str:
    """LOAD, EXPORT, MERGE INTO: as it is written, where it is told by its first word."""
    return str(statement.type.name).replace("_", " ")
