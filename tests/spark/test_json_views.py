"""Views of JSON values by Spark, beside what the embedded engine says of the same tables."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from chispa import assert_df_equality
from pyspark.sql import SparkSession

import bus.sql
from bus.spark import register
from tests.support import json_documents
from tests.support.hand_written_root import HandWrittenRoot
from tests.support.json_values import CASES, NAMES, SCHEMA


def test_both_engines_see_the_same_columns_and_values(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("raw")
    root.append("raw", 0, *((None, value) for value, _, _ in CASES))
    root.create_view("typed", "raw", SCHEMA, ["offset", "value", "_corrupt"])
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        register(spark, str(root.folder), views=["typed"])
        distributed = spark.sql("SELECT * FROM typed ORDER BY offset").toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    with bus.sql.connect(str(root.folder)) as connection:
        embedded = connection.sql("SELECT * FROM typed ORDER BY offset").arrow()
    assert distributed.schema.names == embedded.schema.names == ["offset", "value", *NAMES, "_corrupt"]
    for (value, seen, is_corrupt), row, other in zip(CASES, distributed.to_pylist(), embedded.to_pylist(), strict=True):
        assert row == other, value
        assert {name: row[name] for name in NAMES} == seen, value
        assert row["_corrupt"] == (row["value"] if is_corrupt else None), value


def unescaped(value: Any) -> Any:
    """Without the escapes that Spark makes where it writes the text of an object."""
    match value:
        case str():
            return value.replace(r"\uD83D\uDE00", "\U0001f600")
        case dict():
            return {name: unescaped(inner) for name, inner in value.items()}
        case list():
            return [unescaped(inner) for inner in value]
        case _:
            return value


def test_documents_made_by_chance_are_seen_as_python_reads_them_exactly(spark: SparkSession, tmp_path: Path) -> None:
    documents = json_documents.documents(Random(7), 800)
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("raw")
    root.append("raw", 0, *((None, document.encode()) for document in documents))
    root.create_view("typed", "raw", json_documents.SCHEMA, ["offset", "_corrupt"])
    register(spark, str(root.folder), views=["typed"])
    found = spark.sql("SELECT * FROM typed ORDER BY offset").toArrow().to_pylist()
    for document, row in zip(documents, found, strict=True):
        seen = json_documents.seen(document)
        assert row["_corrupt"] == (document if seen is None else None), document
        assert unescaped({name: row[name] for name in json_documents.NAMES}) == (
            seen or dict.fromkeys(json_documents.NAMES)
        ), document


def test_one_call_registers_topics_views_and_views_of_json(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("flights-2013", partitions=2)
    root.append("flights-2013", 0, (b"a", b'{"carrier":"UA","delay":5}'), (b"b", b"{"))
    root.append("flights-2013", 1, (b"c", b'{"carrier":"AA"}'))
    root.create_view("Delays", "flights-2013", "carrier STRING, delay INT", ["key", "_corrupt"])
    register(spark, str(root.folder))
    found = spark.sql("SELECT * FROM delays")
    expected = spark.createDataFrame(
        [("a", "UA", 5, None), ("b", None, None, "{"), ("c", "AA", None, None)],
        "key string, carrier string, delay int, _corrupt string",
    )
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
    root.append("flights-2013", 1, (b"d", b"{}"))
    assert [spark.table(name).count() for name in ("`flights-2013`", "delays", "bus.delays")] == [4, 4, 4]
    assert spark.sql("SELECT topic, partitions FROM topics WHERE NOT is_internal").collect() == [("flights-2013", 2)]
    assert spark.sql("SELECT CAST(value AS STRING) FROM `flights-2013` WHERE key = 'd'").collect() == [("{}",)]
