"""SQL over tables that were written by hand: what a statement sees, when, and what it says if it cannot."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bus.sql
from bus.cluster_metadata.cluster_records import TopicDeleted
from bus.errors import RootNotUsable
from bus.model import TopicPartition
from bus.records.log_schema import log_schema
from bus.sql import SqlError
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot


def flight(carrier: str, delay: int | None) -> tuple[bytes, bytes]:
    return carrier.encode(), json.dumps({"carrier": carrier, "dep_delay": delay}).encode()


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path / "2024" / "bus data = é [1]")
    root.create_topic("flights", partitions=3)
    root.append("flights", 0, flight("UA", 2), flight("UA", 4))
    root.append("flights", 1, flight("AA", None), flight("AA", 30))
    root.append("flights", 0, flight("DL", -6))
    return root


def rows(root: HandWrittenRoot, query: str, **point_in_time: object) -> list[tuple[object, ...]]:
    with bus.sql.connect(str(root.folder), **point_in_time) as connection:  # type: ignore[arg-type]
        return connection.sql(query).fetchall()


def test_a_topic_is_a_view_of_all_its_partitions(root: HandWrittenRoot) -> None:
    assert rows(root, "SELECT partition, offset, key FROM flights ORDER BY ALL") == [
        (0, 0, "UA"),
        (0, 1, "UA"),
        (0, 2, "DL"),
        (1, 0, "AA"),
        (1, 1, "AA"),
    ]


def test_the_columns_are_topic_partition_the_log_and_the_raw_bytes(root: HandWrittenRoot) -> None:
    with bus.sql.connect(root.folder.as_uri()) as connection:
        result = connection.sql("SELECT * FROM flights WHERE partition = 0 AND offset = 2")
        assert result.columns == [
            "topic",
            "partition",
            "offset",
            "timestamp",
            "timestamp_type",
            "key",
            "value",
            "headers",
            "producer_id",
            "producer_epoch",
            "sequence",
            "leader_epoch",
            "key_bytes",
            "value_bytes",
        ]
        row = dict(zip(result.columns, result.fetchall()[0], strict=True))
    assert row["topic"] == "flights"
    assert row["timestamp"] == datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc) + timedelta(
        milliseconds=2
    )
    assert (row["key"], row["key_bytes"]) == ("DL", b"DL")


def test_json_values_answer_json_operators(root: HandWrittenRoot) -> None:
    query = """SELECT value->>'$.carrier' AS carrier, avg((value->>'dep_delay')::DOUBLE) FROM flights
               GROUP BY 1 ORDER BY 1"""
    assert rows(root, query) == [("AA", 30.0), ("DL", -6.0), ("UA", 3.0)]
    assert rows(root, "SELECT json_extract(value, '$.dep_delay')::INT FROM flights WHERE key = 'DL'") == [(-6,)]


def test_a_sum_of_whole_numbers_is_a_whole_number(root: HandWrittenRoot) -> None:
    found = rows(root, "SELECT sum((value->>'dep_delay')::INT), sum(offset), sum(offset) FILTER (false) FROM flights")
    assert found == [(30, 4, None)]
    assert [type(value) for value in found[0]] == [int, int, type(None)]


def test_bytes_that_are_no_text_are_escaped_and_there_as_bytes(root: HandWrittenRoot) -> None:
    root.create_topic("blobs")
    root.append("blobs", 0, (None, "grün".encode()), (b"\xff\x00", None))
    assert rows(root, "SELECT key, value, key_bytes FROM blobs ORDER BY offset") == [
        (None, "grün", None),
        ("\\xFF\\x00", None, b"\xff\x00"),
    ]


def test_rows_come_partition_by_partition_and_in_offset_order_whatever_bounds_them(root: HandWrittenRoot) -> None:
    root.append("flights", 2, flight("B6", 1), flight("B6", 2))
    everything = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    query = "SELECT partition, offset FROM flights"
    assert rows(root, query) == everything
    root.delete_records("flights", 1, 1)
    assert rows(root, query) == [row for row in everything if row != (1, 0)]
    bounds = {TopicPartition("flights", 0): 2, TopicPartition("flights", 1): 0}
    assert rows(root, query, at_offset=bounds) == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_a_filter_on_the_partition_opens_no_file_of_the_others(root: HandWrittenRoot) -> None:
    root.append("flights", 2, flight("B6", 1))
    for file in root.tables["flights"][2].folder.glob("*.parquet"):
        file.write_bytes(b"no Parquet file")
    assert rows(root, "SELECT key FROM flights WHERE partition = 1 AND offset = 1") == [("AA",)]
    with pytest.raises(SqlError, match=r"no Parquet file|magic bytes|too small"):
        rows(root, "SELECT key FROM flights")


def test_a_file_in_a_folder_of_its_own_is_of_its_partition(root: HandWrittenRoot) -> None:
    table = root.tables["flights"][1]
    (table.folder / "7").mkdir()
    table.rename(0, "7/part.parquet")
    assert rows(root, "SELECT DISTINCT partition FROM flights ORDER BY 1") == [(0,), (1,)]


def test_times_that_another_engine_wrote_without_a_zone_are_utc(root: HandWrittenRoot) -> None:
    """Spark writes such times for readers of the time before there were zones."""
    query = "SELECT timestamp FROM flights ORDER BY ALL"
    before = rows(root, query)
    table = root.tables["flights"][0]
    for number in (0, 2):
        name = table.adds[number]["path"]
        found = pq.read_table(table.folder / name, partitioning=None)
        pq.write_table(found, table.folder / name, use_deprecated_int96_timestamps=True, store_schema=False)
        table.rename(number, f"part-{number}.parquet")
    assert rows(root, query) == before
    assert before[0] == (datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc),)


def test_partitions_of_a_typed_topic_may_differ_in_their_fields(root: HandWrittenRoot) -> None:
    root.create_topic("typed", partitions=2, value_type=pa.struct([("n", pa.int64())]))
    root.tables["typed"][0].append([None], [{"n": 1}])
    wider = root.tables["typed"][1]
    wider.schema = log_schema(pa.struct([("n", pa.int64()), ("more", pa.string())]))
    wider.append([None], [{"n": 2, "more": "x"}])
    assert rows(root, "SELECT value FROM typed WHERE partition = 1") == [({"n": 2, "more": "x"},)]


def test_headers_are_a_list_of_key_and_bytes(root: HandWrittenRoot) -> None:
    root.create_topic("traced")
    root.append("traced", 0, (b"k", b"v"), headers=[[{"key": "trace", "value": b"\x01"}]])
    assert rows(root, "SELECT headers[1].key, headers[1].value FROM traced") == [("trace", b"\x01")]


def test_the_value_of_a_typed_topic_is_its_struct(root: HandWrittenRoot) -> None:
    root.create_topic("typed", partitions=2, value_type=pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))]))
    assert rows(root, "SELECT value.n FROM typed") == []
    root.tables["typed"][1].append([None], [{"n": 7, "tags": ["a"]}])
    assert rows(root, "SELECT value.n, value.tags FROM typed") == [(7, ["a"])]


def test_internal_topics_are_topics(root: HandWrittenRoot) -> None:
    query = "SELECT value.topic, value.partitions FROM __cluster_metadata WHERE value.type = 'TopicCreated'"
    assert rows(root, query) == [("flights", 3)]
    assert rows(root, "SHOW TABLES;") == [("__cluster_metadata",), ("flights",)]


def test_each_statement_sees_the_last_commit_and_an_earlier_one_keeps_its_own(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        before = connection.sql("SELECT count(*) FROM flights")
        root.append("flights", 2, flight("B6", 1))
        assert connection.sql("SELECT count(*) FROM flights").fetchall() == [(6,)]
        assert before.fetchall() == [(5,)]
        root.create_topic("later")
        assert connection.sql("SELECT count(*) FROM later").fetchall() == [(0,)]


def test_a_version_is_time_travel(root: HandWrittenRoot) -> None:
    count = "SELECT count(*) FROM flights"
    assert rows(root, count, at_version=0) == [(0,)]
    assert rows(root, count, at_version={"flights": 0, TopicPartition("flights", 0): 1}) == [(2,)]
    assert rows(root, count, at_version={TopicPartition("flights", 0): 2}) == [(5,)]


def test_an_offset_hides_what_is_at_it_and_after(root: HandWrittenRoot) -> None:
    query = "SELECT partition, max(offset) FROM flights GROUP BY 1 ORDER BY 1"
    assert rows(root, query, at_offset=1) == [(0, 0), (1, 0)]
    assert rows(root, query, at_offset={TopicPartition("flights", 0): 2}) == [(0, 1), (1, 1)]


def test_what_was_deleted_inside_a_file_is_not_shown_but_at_earlier_versions(root: HandWrittenRoot) -> None:
    root.delete_records("flights", 0, 1)
    query = "SELECT partition, offset FROM flights ORDER BY ALL"
    assert rows(root, query) == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert rows(root, query, at_offset=2) == [(0, 1), (1, 0), (1, 1)]
    assert rows(root, query, at_version={TopicPartition("flights", 0): 2})[0] == (0, 0)


def test_files_of_other_engines_are_read_in_offset_order(root: HandWrittenRoot) -> None:
    table = root.tables["flights"][0]
    for number, name in ((0, "part-b.parquet"), (2, "part-a.parquet")):
        table.rename(number, name)
    assert rows(root, "SELECT offset FROM flights WHERE partition = 0") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 2, "minWriterVersion": 5},  # column mapping
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
    ],
)
def test_a_table_whose_files_do_not_tell_all_is_refused_from_that_version_on(
    root: HandWrittenRoot, protocol: dict[str, object]
) -> None:
    count = "SELECT count(*) FROM flights"
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql(count).fetchall() == [(5,)]
        root.tables["flights"][1].commit({"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": protocol})
        for _ in range(2):
            with pytest.raises(SqlError, match=r"flights-1: expected at version 2 .* deletion vectors"):
                connection.sql(count)
    assert rows(root, count, at_version={TopicPartition("flights", 1): 1}) == [(5,)]


def test_every_statement_has_the_settings_of_the_connection(root: HandWrittenRoot) -> None:
    names = ("TimeZone", "parquet_metadata_cache", "autoinstall_known_extensions")
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    assert rows(root, query) == [("UTC", True, False)]


def test_a_version_that_is_not_there_names_those_that_are(root: HandWrittenRoot) -> None:
    with pytest.raises(SqlError, match=r"flights-0: .*0 to 2, found 9"):
        rows(root, "SELECT * FROM flights", at_version=9)


def test_an_unknown_table_lists_the_topics(root: HandWrittenRoot) -> None:
    with pytest.raises(SqlError, match=r"flihgts does not exist(.|\n)*topics: __cluster_metadata, flights$"):
        rows(root, "SELECT * FROM flihgts")


def test_a_deleted_topic_is_no_table_any_more(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT count(*) FROM flights").fetchall() == [(5,)]
        topic_id = connection.sql("SELECT value.topic_id FROM __cluster_metadata WHERE value.topic = 'flights'")
        root.record(TopicDeleted("flights", topic_id.fetchall()[0][0]))
        with pytest.raises(SqlError, match="flights does not exist"):
            connection.sql("SELECT count(*) FROM flights")


def test_bad_syntax_is_told_in_the_engines_words(root: HandWrittenRoot) -> None:
    with pytest.raises(SqlError, match='syntax error at or near "SELEC"') as caught:
        rows(root, "SELEC 1")
    assert caught.value.__cause__ is None


def test_a_name_that_needs_quotes_is_hinted_at(root: HandWrittenRoot) -> None:
    root.create_topic("my-topic.v1")
    with pytest.raises(SqlError, match=r'double quotes: "my-topic\.v1"'):
        rows(root, "SELECT * FROM my-topic.v1")
    assert rows(root, 'SELECT count(*) FROM "my-topic.v1"') == [(0,)]


def test_an_error_while_rows_are_read_is_a_sql_error_too(root: HandWrittenRoot) -> None:
    with pytest.raises(SqlError, match="Could not convert"):
        rows(root, "SELECT key::INT FROM flights")


def test_parameters_stand_for_values(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT count(*) FROM flights WHERE key = ?", ["UA"]).arrow().to_pylist() == [
            {"count_star()": 2}
        ]


def test_filters_reach_the_files_and_leave_other_partitions_alone(root: HandWrittenRoot) -> None:
    with bus.sql.connect(str(root.folder)) as connection:
        plan = connection.sql("EXPLAIN SELECT value FROM flights WHERE offset BETWEEN 1 AND 1 AND partition = 0")
        text = "\n".join(row[1] for row in plan.fetchall())
    assert text.count("File Filters") == 1, text
    assert text.count("Filters") == 2, text
    assert "EMPTY" not in text.upper(), text


def test_nothing_is_written_below_the_root(root: HandWrittenRoot) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in root.folder.rglob("*"))
    rows(root, "SELECT count(*), max(value) FROM flights")
    assert sorted((path, path.stat().st_mtime_ns) for path in root.folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "found nothing"),
        (lambda path: path.mkdir(), "found a folder without it"),
        (lambda path: path.write_text("x"), "found a file"),
        (lambda path: HandWrittenRoot(path, format_version=99), "newer version"),
    ],
)
def test_a_path_that_is_no_bus_root_is_refused(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "root")  # type: ignore[operator]
    with pytest.raises(RootNotUsable, match=message):
        bus.sql.connect(str(tmp_path / "root"))


def test_a_root_in_an_object_store_is_refused_by_name() -> None:
    with pytest.raises(RootNotUsable, match="s3://bucket/bus"):
        bus.sql.connect("s3://bucket/bus")


def test_interrupt_within_a_short_call_of_the_engine_is_a_keyboard_interrupt(
    root: HandWrittenRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise RuntimeError("Query interrupted")  # as the engine does when the signal comes while it is called

    with bus.sql.connect(str(root.folder)) as connection:
        monkeypatch.setattr("bus.sql.connection.check_reads_only", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.sql("SELECT 1")


@pytest.mark.parametrize("field", ["value.carrier", "f.value.carrier.x", "key.carrier"])
def test_field_of_text_is_answered_with_the_operator_for_json(root: HandWrittenRoot, field: str) -> None:
    with pytest.raises(SqlError, match=r"(key|value) is text.*write (key|value)->>'carrier'"):
        rows(root, f"SELECT {field} FROM flights f")
