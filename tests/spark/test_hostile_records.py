"""Produce requests with every field of theirs wrong: what the broker takes, Spark reads as the SDK does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import grpc
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql import DataFrame, SparkSession

import bus.spark
from bus import Admin, Consumer, NewTopic, TopicPartition
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.records.log_schema import HEADERS_TYPE
from tests.support.broker_thread import running_broker
from tests.support.hostile_requests import CALLS, Plausible, plausible_request, random_request, single_changes
from tests.support.spark_source import read_bus

TOPIC = "t"
PRODUCE = next(call for call in CALLS if call.name == "ProduceOnce")
RANDOM_COUNT = 200
HEADERS = [[("h", b"1"), ("h", None), ("", b"")], [], None]
ROWS = pa.RecordBatch.from_arrays(
    [pa.array([b"value", None, b""]), pa.array([None, b"", b"key"]), pa.array(HEADERS, HEADERS_TYPE)],
    names=["value", "key", "headers"],
)


def usual(kind: str) -> Plausible:
    """`kind`: what the records come in, arrow or records."""
    values = {"topic": TOPIC, "partition": 0, "acks": -1, "timeout_ms": 30_000, "arrow": encode_arrow(ROWS)}

    def choose(field: FieldDescriptor) -> object | None:
        if field.name in ("arrow", "records") and field.containing_oneof is not None:
            return None if field.name != kind else values.get(kind, field)
        return field if field.message_type is not None else values.get(field.name)

    return choose


def ask_for_everything(produce: Callable[[pb.ProduceRequest], pb.ProduceResponse]) -> None:
    chance = random.Random(0)
    for kind in ("arrow", "records"):
        requests = [plausible_request(PRODUCE, usual(kind))]
        for _, change in single_changes(PRODUCE):
            requests.append(plausible_request(PRODUCE, usual(kind)))
            change(requests[-1])
        requests += [random_request(PRODUCE, usual(kind), chance) for _ in range(RANDOM_COUNT)]
        for request in requests:
            with contextlib.suppress(grpc.RpcError):  # how it is refused, the tests of the calls tell
                produce(request)


def consumed(address: str) -> pa.Table:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        tables = []
        while consumer.position(partition) < end:
            tables.append(consumer.poll_arrow(timeout_ms=1_000))
    return pa.concat_tables(tables)


def rows_of(table: pa.Table, timestamp: str, timestamp_type: str) -> list[tuple[object, ...]]:
    """Rows by offset. Times as microseconds: a datetime of Python ends with the year 9999, a record's may be later.
    Spark's Kafka source has null where a record has no headers."""
    numbers = [table["offset"], table[timestamp].cast(pa.int64()), table[timestamp_type].cast(pa.int32())]
    headers = [found or None for found in table["headers"].to_pylist()]
    columns = [column.to_pylist() for column in (*numbers, table["key"], table["value"])]
    return sorted(zip(*columns, headers, strict=True))


def in_spark(frame: DataFrame, timestamp_type: str) -> list[tuple[object, ...]]:
    found = frame.selectExpr("offset", "key", "value", "unix_micros(timestamp) AS at", timestamp_type, "headers")
    return rows_of(found.toArrow(), "at", timestamp_type)


def test_spark_reads_whatever_the_broker_takes(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic(TOPIC, 1)])
        with grpc.insecure_channel(address) as channel:
            ask_for_everything(bus_pb2_grpc.BusStub(channel).ProduceOnce)
        expected = rows_of(consumed(address), "timestamp", "timestamp_type")
        by_broker = read_bus(spark, broker.port, subscribe=TOPIC, includeHeaders="true")
        assert in_spark(by_broker, "timestampType") == expected
    by_storage = read_bus(spark, root, subscribe=TOPIC, includeHeaders="true")
    assert in_spark(by_storage, "timestampType") == expected
    assert in_spark(bus.spark.read_topic(spark, str(root), TOPIC), "timestamp_type") == expected
    assert len(expected) > 100
