"""Statements that would write, change a setting or read from elsewhere, by both doors; and those that only look so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

import bus.sql
from bus.cli.main import cli
from bus.cluster_metadata.cluster_records import ViewCreated
from bus.sql import SqlError
from tests.support.hand_written_root import HandWrittenRoot

ROWS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path_factory.mktemp("home") / "bus [1] *")
    root.create_topic("flights", partitions=2)
    root.append("flights", 0, (b"a", b'{"carrier":"UA","delay":5}'), (b"b", b"no json"))
    root.append("flights", 1, (b"c", b'{"carrier":"AA"}'))
    root.create_view("delays", "flights", "carrier STRING, delay INT")
    duckdb.sql("SELECT 7 AS n").write_parquet(str(root.folder.parent / "other.parquet"))
    return root


@pytest.fixture(scope="module")
def connection(root: HandWrittenRoot) -> Iterator[bus.sql.Connection]:
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT * FROM lag").fetchall() == []
        yield connection


@pytest.fixture
def untouched(root: HandWrittenRoot, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a statement does, no file is another one afterwards, nor is there one more, in the root and around."""
    home = root.folder.parent
    monkeypatch.chdir(home)
    before = contents(home)
    yield
    assert contents(home) == before


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


WRITES = [
    "COPY (SELECT 1) TO '{version}'",
    "COPY flights TO '{version}' (FORMAT csv)",
    "copy (select 1) to '{version}'; select 1",
    "/* SELECT */ COPY (SELECT 1) TO '{version}'",
    "SELECT 1; COPY (SELECT 1) TO '{version}'",
    "WITH a AS (COPY (SELECT 1) TO '{version}') SELECT * FROM a",
    "WITH RECURSIVE a AS (SELECT 1), b AS MATERIALIZED (COPY (SELECT 1) TO '{version}') FROM b",
    "SELECT (WITH a AS (COPY (SELECT 1) TO '{version}') SELECT count(*) FROM a)",
    "SELECT * FROM (WITH a AS (COPY (SELECT 1) TO '{version}') FROM a)",
    "DESCRIBE WITH a AS (COPY (SELECT 1) TO '{version}') FROM a",
    "SUMMARIZE WITH a AS (COPY (SELECT 1) TO '{version}') FROM a",
    "EXPLAIN COPY (SELECT 1) TO '{version}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{version}'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{version}'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{version}'",
    "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO '{version}') FROM a",
    "COPY (PIVOT flights ON key USING count(*)) TO '{version}'",
    "EXPLAIN ANALYZE COPY (PIVOT flights ON key USING count(*)) TO '{version}'",
    "WITH a AS (COPY (SELECT 1) TO '{version}') PIVOT flights ON key USING count(*)",
    "WITH a AS NOT MATERIALIZED (WITH b AS (COPY (SELECT 1) TO '{version}') FROM b) PIVOT a ON key USING count(*)",
    "SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{version}'') FROM a')",
    "SELECT * FROM \"query\"('WITH a AS (COPY (SELECT 1) TO ''{version}'') FROM a')",
    "PIVOT (FROM query('WITH a AS (COPY (SELECT 1) TO ''{version}'') FROM a')) ON 1 USING count(*)",
    "FROM json_execute_serialized_sql(json_serialize_sql('WITH a AS (COPY (SELECT 1) TO ''{version}'') FROM a'))",
    "PRAGMA json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "COPY FROM DATABASE memory TO other",
    "EXPORT DATABASE '{version}'",
    "IMPORT DATABASE '{out}'",
    "ATTACH '{out}'",
    "ATTACH '{version}' AS a",
    "DETACH memory",
    "USE memory",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE TABLE t AS PIVOT flights ON key USING count(*)",
    "CREATE OR REPLACE VIEW flights AS SELECT 1",
    "CREATE MACRO f(a) AS a + 1",
    "CREATE SCHEMA s",
    "CREATE SEQUENCE s",
    "CREATE TYPE t AS ENUM ('a')",
    "CREATE SECRET s (TYPE s3)",
    "CREATE PERSISTENT SECRET s (TYPE http)",
    "DROP VIEW flights",
    "DROP SCHEMA bus CASCADE",
    "ALTER VIEW flights RENAME TO f",
    "COMMENT ON VIEW flights IS 'x'",
    "INSERT INTO bus.lag SELECT * FROM bus.lag",
    "WITH a AS (INSERT INTO bus.lag SELECT * FROM bus.lag RETURNING *) SELECT * FROM a",
    "WITH a AS (DELETE FROM bus.lag RETURNING *) SELECT * FROM a",
    "WITH a AS (UPDATE bus.lag SET lag = 0 RETURNING *) SELECT * FROM a",
    "UPDATE bus.lag SET lag = 0",
    "DELETE FROM bus.lag",
    "TRUNCATE bus.lag",
    "MERGE INTO bus.lag USING flights ON true WHEN MATCHED THEN DELETE",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "CALL range(3)",
    "CALL checkpoint()",
    "CALL enable_logging('QueryLog', storage='file', storage_config={{'path': '{out}'}})",
    "SELECT * FROM enable_logging('QueryLog', storage='file', storage_config={{'path': '{out}'}})",
    "SELECT * FROM enable_profiling(save_location='{out}')",
    "FROM checkpoint()",
    "FROM force_checkpoint()",
    "FROM truncate_duckdb_logs()",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "SET threads = 1",
    "SET GLOBAL enable_external_access = true",
    "SET VARIABLE a = 1",
    "RESET threads",
    "PRAGMA threads = 1",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "LOAD httpfs",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM '{out}'",
    "SELECT 1; SELECT 2",
    "SELECT 1;; SELECT 2",
    ";",
    "-- SELECT 1",
]
FOREIGN_READS = [
    "SELECT * FROM '{other}'",
    "SELECT * FROM read_parquet('{other}')",
    "SELECT * FROM parquet_scan(['{other}'])",
    "SELECT * FROM \"READ_PARQUET\"('{other}')",
    "SELECT * FROM main.read_parquet('{other}')",
    "SELECT * FROM system.main.read_parquet('{other}')",
    "SELECT * FROM parquet_metadata('{other}')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_duckdb('{other}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM flights, LATERAL (SELECT * FROM read_text('/etc/passwd'))",
    "SELECT (SELECT count(*) FROM read_text('/etc/passwd')) FROM flights",
    "SELECT * FROM flights WHERE key IN (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT * FROM flights ORDER BY (SELECT count(*) FROM read_text('/etc/passwd'))",
    "SUMMARIZE SELECT * FROM read_text('/etc/passwd')",
    "EXPLAIN SELECT * FROM read_text('/etc/passwd')",
    "PIVOT (FROM read_text('/etc/passwd')) ON size USING count(*)",
    "PIVOT (FROM \"read_text\" ('/etc/passwd')) ON size USING count(*)",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('flights')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x/y', 's3')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM 'https://127.0.0.1:9/x.parquet'",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT getenv('HOME')",
    "SELECT * FROM topics_of_the_program",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
]
READS = [
    "SELECT * FROM flights",
    "select * from flights;",
    " ;SELECT * FROM flights -- and no more",
    "(SELECT * FROM flights)",
    "FROM flights",
    "TABLE flights",
    "WITH a AS (SELECT * FROM flights) SELECT * FROM a",
    "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < 3) SELECT * FROM a",
    "WITH a AS MATERIALIZED (FROM flights), b AS (FROM a) FROM b",
    "SELECT key FROM flights UNION ALL SELECT key FROM flights WHERE false",
    "VALUES (1), (2), (3)",
    "FROM range(3)",
    "SELECT unnest([1, 2, 3])",
    "SELECT * FROM flights, generate_series(1, 1)",
    "SELECT 'COPY (SELECT 1) TO ''x''', key FROM flights",
    'SELECT key AS "COPY", value AS insert FROM flights',
    'SELECT \'"type":"COPY_QUERY_NODE"\', \'"function_name":"read_text"\' FROM flights',
    "SELECT * FROM (SUMMARIZE SELECT key, value, offset FROM flights)",
    "SELECT key, carrier, delay FROM delays",
    "SELECT f.key FROM flights f ASOF JOIN delays d ON f.key = d.key AND f.offset >= d.offset",
    "SELECT key, row_number() OVER (ORDER BY key) FROM flights QUALIFY true",
]


def hostile(root: HandWrittenRoot, statement: str) -> str:
    places = {
        "version": root.folder / "topics" / "flights" / "0" / "_delta_log" / f"{1:020}.json",
        "out": root.folder / "topics" / "flights" / "0" / "new",
        "other": root.folder.parent / "other.parquet",
    }
    return statement.format(**places)


@pytest.mark.parametrize("statement", WRITES + FOREIGN_READS)
def test_what_does_more_than_to_read_the_root_is_refused_in_a_program(
    root: HandWrittenRoot, connection: bus.sql.Connection, untouched: None, statement: str
) -> None:
    topics_of_the_program = pa.table({"n": [1]})
    with pytest.raises(SqlError) as refused:
        connection.sql(hostile(root, statement)).fetchall()
    assert refused.value.args[0]
    assert len(connection.sql("SELECT * FROM flights").fetchall()) == ROWS, topics_of_the_program


@pytest.mark.parametrize("statement", WRITES + FOREIGN_READS)
def test_what_does_more_than_to_read_the_root_is_refused_on_the_command_line(
    root: HandWrittenRoot, untouched: None, statement: str
) -> None:
    arguments = ["sql", "--root", str(root.folder), "--", hostile(root, statement)]
    refused = CliRunner().invoke(cli, arguments, prog_name="bus")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ")


@pytest.mark.parametrize("statement", READS)
def test_what_only_reads_is_answered(connection: bus.sql.Connection, untouched: None, statement: str) -> None:
    assert len(connection.sql(statement).fetchall()) == ROWS


@pytest.mark.parametrize(
    "statement",
    [
        "EXPLAIN SELECT * FROM flights",
        "EXPLAIN ANALYZE SELECT * FROM flights",
        "EXPLAIN (FORMAT json) SELECT * FROM flights",
        "EXPLAIN (ANALYZE) SELECT * FROM flights",
        "EXPLAIN (SELECT * FROM flights)",
        "DESCRIBE flights",
        "DESC delays",
        "DESCRIBE SELECT key FROM flights",
        "SHOW flights",
        "SHOW TABLES",
        "SUMMARIZE flights",
        "PIVOT flights ON key USING count(*)",
        "PIVOT flights ON key IN ('a', 'b') USING count(*);",
        "WITH f AS (FROM flights) PIVOT f ON key USING max(offset) ORDER BY ALL -- wide",
        "SELECT * FROM (PIVOT (SELECT key, offset FROM flights) ON key USING count(*))",
        "UNPIVOT (SELECT key, value FROM flights) ON key, value",
        "SELECT * FROM duckdb_keywords()",
        "SELECT * FROM information_schema.schemata",
        "SELECT * FROM histogram(flights, partition)",
        "SELECT j.value FROM flights, json_each('[1]') j",
    ],
)
def test_what_explains_describes_or_pivots_is_answered(
    connection: bus.sql.Connection, untouched: None, statement: str
) -> None:
    assert connection.sql(statement).fetchall()
    assert connection.sql(statement).fetchall()


def test_a_refusal_says_what_was_found_and_what_may_be(connection: bus.sql.Connection) -> None:
    with pytest.raises(SqlError, match=r"expected one statement that reads: SELECT, EXPLAIN.*; found COPY: a bus is"):
        connection.sql("COPY (SELECT 1) TO 'x'")
    with pytest.raises(SqlError, match="found COPY inside of it: a bus is written by its broker alone"):
        connection.sql("WITH a AS (COPY (SELECT 1) TO 'x') FROM a")
    with pytest.raises(SqlError, match="found 2 of them"):
        connection.sql("SELECT 1; SELECT 2")
    with pytest.raises(SqlError, match="expected topics and views to read from, found the table function read_csv"):
        connection.sql("SELECT * FROM read_csv('x.csv')")


def test_a_long_expression_is_judged_as_a_short_one(connection: bus.sql.Connection) -> None:
    assert connection.sql("SELECT " + " + ".join(["1"] * 900)).fetchall() == [(900,)]
    with pytest.raises(SqlError, match="expression depth"):
        connection.sql("SELECT " + " + ".join(["1"] * 9_000))


def test_the_columns_of_a_view_are_names_and_no_sql(tmp_path: Path) -> None:
    """A root may have been written by a program that checks less."""
    hostile_root = HandWrittenRoot(tmp_path / "root")
    hostile_root.create_topic("flights")
    hostile_root.append("flights", 0, (b"a", b"{}"))
    column = f"key\" FROM (WITH a AS (COPY (SELECT 1) TO '{tmp_path}/root/topics/x') FROM a) --"
    hostile_root.record(ViewCreated("v", "flights", "n INT", column))
    with bus.sql.connect(str(hostile_root.folder)) as connection, pytest.raises(SqlError):
        connection.sql("SELECT * FROM v")
    assert not (tmp_path / "root" / "topics" / "x").exists()


def test_a_root_is_read_by_a_link_to_it(root: HandWrittenRoot, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root.folder)
    with bus.sql.connect(str(tmp_path / "link")) as connection:
        assert connection.sql("SELECT count(*) FROM flights").fetchall() == [(ROWS,)]


def test_what_does_not_fit_into_memory_is_kept_apart_from_the_root(root: HandWrittenRoot, untouched: None) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        [(folder,)] = connection.sql("SELECT current_setting('temp_directory')").fetchall()
        assert Path(folder).is_dir()
    del connection
    assert not Path(folder).exists()
