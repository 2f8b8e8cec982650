"""Lines of the broker's log about a fetch that took long."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import grpc
import pytest

from bus import Admin, NewTopic
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from tests.support.broker_thread import running_broker


def test_the_log_says_where_the_time_of_a_fetch_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = pb.FetchRequest(
        correlation_id=7, max_wait_ms=30, min_bytes=1, partitions=[pb.FetchPartition(topic="t", partition=0)]
    )
    with running_broker(tmp_path / "root") as broker, grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with caplog.at_level(logging.DEBUG, "bus.grpc_api.server.records.fetch"):
            stub = bus_pb2_grpc.BusStub(channel)
            stub.FetchOnce(asked)
            assert [answer.correlation_id for answer in stub.Fetch(iter([asked]))] == [7]
    lines = [record.getMessage() for record in caplog.records if record.name == "bus.grpc_api.server.records.fetch"]
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("fetch of 1 partition answered with ")
        assert "ended by its longest wait" in line
        assert re.search(r": [\d.]+ behind earlier answers, [\d.]+ proving, [\d.]+ waiting \(max_wait_ms 30, ", line)


def test_the_log_says_which_wait_a_fetch_went_by(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    twice = [pb.FetchPartition(topic="t", partition=0)] * 2  # is refused, so there is nothing to wait for
    asked = pb.FetchRequest(max_wait_ms=600_000, min_bytes=9, partitions=twice)
    caplog.set_level(logging.DEBUG, "bus.grpc_api.server.records.fetch")
    with running_broker(tmp_path / "root") as broker, grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        bus_pb2_grpc.BusStub(channel).FetchOnce(asked)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bus.grpc_api.server.records.fetch"]
    assert "ended by max_wait_ms or min_bytes of 0" in line
    assert "(max_wait_ms 0, min_bytes 0)" in line
