"""The example programs of joins, on tables that were written by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from tests.support.hand_written_root import HandWrittenRoot

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def append(root: HandWrittenRoot, topic: str, *values: dict[str, object]) -> None:
    root.append(topic, 0, *((None, json.dumps(value).encode()) for value in values))


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    return HandWrittenRoot(tmp_path / "root")


@pytest.fixture
def carriers(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "carriers")
    rows = [("UA", "United"), ("AA", "American")]
    spark.createDataFrame(rows, "carrier string, name string").write.format("delta").save(path)
    return path


def test_a_topic_is_joined_with_a_delta_table(spark: SparkSession, root: HandWrittenRoot, carriers: str) -> None:
    root.create_topic("flights")
    root.create_view("delays", "flights", "carrier STRING, delay INT")
    append(root, "flights", {"carrier": "UA", "delay": 4}, {"carrier": "UA", "delay": 6}, {"carrier": "XX"})
    found = example("topic_with_delta_table").delay_by_name(spark, str(root.folder), carriers)
    expected = spark.createDataFrame([("United", 2, 5.0)], "name string, flights long, delay double")
    assert_df_equality(found, expected, ignore_nullable=True)


@pytest.mark.timeout(600)
def test_a_stream_is_joined_with_a_delta_table_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, root: HandWrittenRoot, carriers: str
) -> None:
    target = str(tmp_path / "enriched")
    program = example("stream_static_join")
    root.create_topic("flights")
    append(root, "flights", {"carrier": "UA", "delay": 4}, {"carrier": "XX", "delay": 0})
    program.run(spark, str(root.folder), carriers, target)
    append(root, "flights", {"carrier": "AA", "delay": 1})
    program.run(spark, str(root.folder), carriers, target)
    expected = spark.createDataFrame(
        [("UA", 0, 0, 4, "United"), ("XX", 0, 1, 0, None), ("AA", 0, 2, 1, "American")],
        "carrier string, partition int, offset long, delay int, name string",
    )
    found = spark.read.format("delta").load(target)
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.timeout(600)
def test_orders_are_matched_with_payments_within_an_hour(
    spark: SparkSession, tmp_path: Path, root: HandWrittenRoot
) -> None:
    target = str(tmp_path / "paid")
    for topic, times in {
        "orders": {"o-1": "12:00", "o-2": "12:05", "o-3": "12:06"},
        "payments": {"o-1": "12:59", "o-2": "13:06", "o-4": "12:10"},
    }.items():
        root.create_topic(topic)
        append(root, topic, *({"id": name, "at": f"2024-02-29T{at}:00Z"} for name, at in times.items()))
    example("stream_stream_join").run(spark, str(root.folder), target)
    found = spark.read.format("delta").load(target).selectExpr("id", "unix_seconds(paid_at) AS paid_at")
    assert_df_equality(
        found, spark.createDataFrame([("o-1", 1709211540)], "id string, paid_at long"), ignore_nullable=True
    )
