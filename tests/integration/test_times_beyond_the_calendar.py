"""Records from the year 10000 on, which earlier versions took: every reader shows them, and none stops at them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import grpc
import pytest

import bus.partition_log.appends as appends
from bus import Consumer, TopicPartition
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from tests.support.broker_thread import running_broker

TIMES_MS = [1_577_836_800_001, 253_402_300_800_999, 2**63 // 1000 - 2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bus") / "root"
    with pytest.MonkeyPatch.context() as patch, running_broker(root) as broker:
        patch.setattr(appends, "TIMESTAMP_MS_MAX", 2**62)
        with grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
            stub = bus_pb2_grpc.BusStub(channel)
            configs = {"message.timestamp.after.max.ms": str(2**63 - 1)}
            stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", configs=configs)]))
            for timestamp_ms in TIMES_MS:
                records = pb.RecordList(records=[pb.Record(value=b"v", timestamp_ms=timestamp_ms)])
                data = pb.PartitionProduceData(topic="t", records=records)
                answer = stub.ProduceOnce(pb.ProduceRequest(partitions=[data])).partitions[0]
                assert answer.error_code == 0
    return root


def test_fetches_and_consumers_have_their_milliseconds(root: Path) -> None:
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with grpc.insecure_channel(address) as channel:
            asked = pb.FetchRequest(format=pb.RECORD_FORMAT_RECORDS, partitions=[pb.FetchPartition(topic="t")])
            found = bus_pb2_grpc.BusStub(channel).FetchOnce(asked).partitions[0].records.records
        assert [record.timestamp_ms for record in found] == TIMES_MS
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumed = [record.timestamp_ms for record in islice(consumer, len(TIMES_MS))]
        assert consumed == TIMES_MS


def test_the_command_line_shows_and_verifies_them(root: Path) -> None:
    def bus(*arguments: str) -> str:
        command = [sys.executable, "-c", "from bus.cli.main import main; main()", *arguments, "--root", str(root)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    rows = json.loads(bus("sql", "--format", "json", "SELECT timestamp FROM t"))
    assert [row["timestamp"].split("-")[0] for row in rows] == ["2020", "+10000", "+294247"]
    bus("log", "verify", "t")
