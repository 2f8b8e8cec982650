"""Connections that send and never read an answer: the others go on, and the broker's memory stays bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from bus.broker_api import broker_api
from bus.broker_api.requests import RequestMemory
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

CONNECTIONS = 12
REQUESTS = 60  # of each, of which the last are sent though no answer has been read
BYTES_MAX = 2 * 1024 * 1024
# Connections of their own that take only some answers off the wire while the program reads none.
UNREAD = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
ARROW = encode_arrow(pa.record_batch({"value": pa.array([b"v" * 20_000])}))


def request(partition: int) -> pb.ProduceRequest:
    return pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t", partition=partition, arrow=ARROW)])


def open_ended(requests: list[Any], ended: threading.Event) -> Iterator[Any]:
    yield from requests
    ended.wait(60)


def test_connections_that_never_read_harm_no_other_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks: list[int] = []

    class Watched(RequestMemory):
        def __init__(self, bytes_max: int, overdraft_bytes: int = 0) -> None:
            super().__init__(bytes_max, overdraft_bytes)
            self.number = len(peaks)
            peaks.append(0)

        def add(self, client: Any, size_bytes: int) -> None:
            super().add(client, size_bytes)
            peaks[self.number] = max(peaks[self.number], self._bytes)

    monkeypatch.setattr(broker_api, "RequestMemory", Watched)
    config = BrokerConfig(queued_max_request_bytes=BYTES_MAX)
    ended = threading.Event()
    with running_broker(tmp_path, config=config) as broker, ExitStack() as stack:

        def connect(options: list[Any]) -> bus_pb2_grpc.BusStub:
            channel = grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=options)
            return bus_pb2_grpc.BusStub(stack.enter_context(channel))

        stack.callback(ended.set)
        good = connect([])
        good.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]))
        produced = [connect(UNREAD).Produce(open_ended([request(0)] * REQUESTS, ended)) for _ in range(CONNECTIONS)]
        asked = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition_max_bytes=1 << 20)])
        fetched = [connect(UNREAD).Fetch(open_ended([asked] * 20, ended)) for _ in range(CONNECTIONS)]

        for _ in range(20):
            assert good.ProduceOnce(request(1), timeout=30).partitions[0].error_code == 0
        position = pb.ListOffsetsRequest(partitions=[pb.ListOffsetsPartition(topic="t", timestamp_ms=-1)])
        deadline_s = time.monotonic() + 50
        while good.ListOffsets(position).partitions[0].offset < CONNECTIONS * REQUESTS:
            assert time.monotonic() < deadline_s, "records were sent and are not committed"
        found = good.FetchOnce(asked, timeout=30)
        assert not found.partitions[0].error_code
        assert found.partitions[0].batches
        assert not any(call.done() for call in produced + fetched)
        for call in produced + fetched:
            call.cancel()
    assert max(peaks) <= BYTES_MAX + CONNECTIONS * (64 * 1024 + len(ARROW))
