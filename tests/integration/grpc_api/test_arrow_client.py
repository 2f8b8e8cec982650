"""A LogBatch can be read with the stubs and Arrow by what bus.proto says of it, whatever columns are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest

from bus import Admin, NewTopic, Producer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from tests.support.broker_thread import running_broker

COLUMNS = (
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "leader_epoch",
    "sequence",
    "producer_id",
)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_broker(tmp_path_factory.mktemp("arrow") / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("keyless", 1), NewTopic("mixed", 1)])
            producer.send_batch("keyless", pa.table({"value": [b"%d" % n for n in range(600)]})).result(50)
            for number in range(3):
                key = b"k" if number else None
                producer.send("mixed", b"v", key, [("h", None)], timestamp_ms=1_000 + number).result(50)
        with grpc.insecure_channel(address) as channel:
            yield bus_pb2_grpc.BusStub(channel)


def read(batch: pb.LogBatch, name: str) -> list[Any]:
    """A column, by the comments of LogBatch alone."""
    count = batch.record_count
    if batch.arrow:
        table = pa.ipc.open_stream(batch.arrow).read_all()
        assert table.num_rows == count
        if name in table.column_names:
            return table.column(name).to_pylist()
    given = {"producer_id": "producer_id", "sequence": "base_sequence", "timestamp": "timestamp_ms"}
    field = given.get(name)
    if field is not None and not batch.HasField(field):  # type: ignore[arg-type]
        return [None] * count
    match name:
        case "offset":
            return [batch.base_offset + position for position in range(count)]
        case "sequence":
            return [(batch.base_sequence + position) % 2**31 for position in range(count)]
        case "timestamp_type" | "leader_epoch" | "producer_id":
            return [getattr(batch, name)] * count
        case "timestamp":
            return [batch.timestamp_ms] * count
    return [None] * count


def fetch(stub: Any, topic: str, *columns: str) -> dict[str, list[Any]]:
    partitions = [pb.FetchPartition(topic=topic, partition=0)]
    (found,) = stub.FetchOnce(pb.FetchRequest(partitions=partitions, columns=columns)).partitions
    return {name: [value for batch in found.batches for value in read(batch, name)] for name in columns}


@pytest.mark.parametrize("topic", ["keyless", "mixed"])
def test_each_column_alone_is_what_it_is_beside_the_others(stub: Any, topic: str) -> None:
    together = fetch(stub, topic, *COLUMNS)
    count = 600 if topic == "keyless" else 3
    assert together["offset"] == list(range(count))
    assert together["sequence"] == list(range(count))
    assert together["key"] == ([None] * 600 if topic == "keyless" else [None, b"k", b"k"])
    for name in COLUMNS:
        assert fetch(stub, topic, name) == {name: together[name]}


def test_payload_is_empty_where_all_that_was_asked_for_is_given_beside_it(stub: Any) -> None:
    for columns in (["offset"], ["key"], ["leader_epoch", "timestamp_type"], ["producer_id", "sequence"]):
        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="keyless")], columns=columns)
        (found,) = stub.FetchOnce(request).partitions
        assert [batch.arrow for batch in found.batches] == [b""] * len(found.batches)
