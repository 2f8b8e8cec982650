"""Views of JSON values, by the embedded engine, on tables that were written by hand."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import bus.sql
from bus.cluster_metadata.cluster_records import TopicDeleted, ViewDeleted
from bus.sql import SqlError
from tests.support import json_documents
from tests.support.hand_written_root import HandWrittenRoot
from tests.support.json_values import CASES, NAMES, SCHEMA


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("flights", partitions=2)
    root.append("flights", 0, (b"a", b'{"carrier":"UA","delay":5}'), (b"b", b"no json"))
    root.append("flights", 1, (b"c", b'{"carrier":"AA"}'))
    root.create_view("delays", "flights", "carrier STRING, delay INT")
    return root


def rows(root: HandWrittenRoot, query: str, **point_in_time: Any) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(root.folder), **point_in_time) as connection:
        return connection.sql(query).fetchall()


@pytest.mark.parametrize(("value", "seen", "is_corrupt"), CASES)
def test_each_value_is_seen_as_the_columns_say(
    tmp_path: Path, value: bytes | None, seen: dict[str, Any], is_corrupt: bool
) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("raw")
    root.append("raw", 0, (None, value))
    root.create_view("typed", "raw", SCHEMA, ["value", "_corrupt"])
    with bus.sql.connect(str(root.folder)) as connection:
        result = connection.sql("SELECT * FROM typed")
        assert result.columns == ["value", *NAMES, "_corrupt"]
        (row,) = [dict(zip(result.columns, row, strict=True)) for row in result]
    assert {name: row[name] for name in NAMES} == seen
    assert row["_corrupt"] == (row["value"] if is_corrupt else None)


@pytest.mark.parametrize("seed", range(3))
def test_documents_made_by_chance_are_seen_as_python_reads_them_exactly(tmp_path: Path, seed: int) -> None:
    documents = json_documents.documents(Random(seed), 400)
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("raw")
    root.append("raw", 0, *((None, document.encode()) for document in documents))
    root.create_view("typed", "raw", json_documents.SCHEMA, ["offset", "_corrupt"])
    found = [
        dict(zip(("offset", *json_documents.NAMES, "_corrupt"), row, strict=True))
        for row in rows(root, "SELECT * FROM typed ORDER BY offset")
    ]
    for document, row in zip(documents, found, strict=True):
        seen = json_documents.seen(document)
        assert row["_corrupt"] == (document if seen is None else None), document
        assert {name: row[name] for name in json_documents.NAMES} == (seen or dict.fromkeys(json_documents.NAMES)), (
            document
        )


def test_the_usual_columns_come_first_and_the_corrupt_one_last(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        result = connection.sql("SELECT * FROM delays ORDER BY key")
        assert result.columns == ["partition", "offset", "timestamp", "key", "carrier", "delay", "_corrupt"]
        found = [(row[3], *row[4:]) for row in result]
    assert found == [("a", "UA", 5, None), ("b", None, None, "no json"), ("c", "AA", None, None)]


def test_a_view_is_found_in_any_case_and_in_the_schema_of_the_bus(root: HandWrittenRoot) -> None:
    assert rows(root, "SELECT sum(delay) FROM Delays") == [(5,)]
    assert rows(root, "SELECT count(*) FROM bus.delays d JOIN flights USING (partition, offset)") == [(3,)]


def test_a_view_shows_the_point_in_time_of_its_topic(root: HandWrittenRoot) -> None:
    assert rows(root, "SELECT count(*) FROM delays", at_version=0) == [(0,)]
    assert rows(root, "SELECT count(*) FROM delays", at_offset=1) == [(2,)]


def test_each_statement_sees_the_views_of_its_time(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SHOW TABLES").fetchall() == [("__cluster_metadata",), ("flights",), ("delays",)]
        assert connection.sql("SELECT max(delay) FROM delays").fetchall() == [(5,)]
        root.create_view("DELAYS", "flights", "delay STRING, carrier STRING")
        assert connection.sql("SELECT max(delay) FROM delays").fetchall() == [("5",)]
        root.record(ViewDeleted("delays"))
        with pytest.raises(SqlError, match=r"delays does not exist"):
            connection.sql("SELECT * FROM delays")
        with pytest.raises(SqlError, match=r"delays does not exist"):
            connection.sql("SELECT * FROM bus.delays")


def test_a_topic_of_its_name_that_came_later_comes_first(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT count(*) FROM delays").fetchall() == [(3,)]
        root.create_topic("delays")
        assert connection.sql("SELECT count(*) FROM delays").fetchall() == [(0,)]
        assert connection.sql("SELECT count(*) FROM bus.delays").fetchall() == [(3,)]
        root.record(ViewDeleted("delays"))
        assert connection.sql("SELECT count(*) FROM delays").fetchall() == [(0,)]


def test_a_view_whose_topic_is_gone_says_so(root: HandWrittenRoot) -> None:
    query = "SELECT value.topic_id FROM __cluster_metadata WHERE value.type = 'TopicCreated'"
    ((topic_id,),) = rows(root, query)
    root.record(TopicDeleted("flights", topic_id))
    with pytest.raises(SqlError, match="view delays: its topic flights is gone"):
        rows(root, "SELECT * FROM delays")


def test_an_unknown_table_lists_the_views_too(root: HandWrittenRoot) -> None:
    listing = r"views: .*, audit, acls, effective_acls, delays\ntopics: __cluster_metadata, flights"
    with pytest.raises(SqlError, match=listing):
        rows(root, "SELECT * FROM nowhere")
