"""How late may a repeat come? As late as its records are retained: memory, restarts and maintenance do not matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import deltalake
import grpc
import pytest

import bus.sql
from bus import Admin, NewTopic
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

HOUR_MS = 3_600_000
BATCHES = 30
PER_BATCH = 5


@dataclass
class ManualClock:
    at_ms: int = 1_767_225_600_000

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


@contextmanager
def served(root: Path, clock: ManualClock) -> Iterator[bus_pb2_grpc.BusStub]:
    config = BrokerConfig(producer_id_expiration_ms=HOUR_MS // 2)
    with (
        running_broker(root, config=config, clock=clock) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            if "orders" not in admin.list_topics():
                admin.create_topics(
                    [NewTopic("orders", partitions=1, configs={"delta.foreign.writers.enable": "true"})]
                )
        yield bus_pb2_grpc.BusStub(channel)


def produce(stub: bus_pb2_grpc.BusStub, producer_id: int, number: int) -> pb.PartitionProduceResponse:
    """The batch of that number: the same at every call."""
    records = [pb.Record(value=b"%d" % (number * PER_BATCH + position)) for position in range(PER_BATCH)]
    share = pb.PartitionProduceData(
        topic="orders",
        records=pb.RecordList(records=records),
        producer_id=producer_id,
        base_sequence=number * PER_BATCH,
    )
    answer: pb.PartitionProduceResponse = stub.ProduceOnce(pb.ProduceRequest(partitions=[share])).partitions[0]
    return answer


@pytest.mark.parametrize("is_merged", [False, True], ids=["as written", "files merged"])
def test_repeat_after_an_hour_a_restart_and_maintenance_gets_the_offset_it_had(tmp_path: Path, is_merged: bool) -> None:
    root, clock = tmp_path / "root", ManualClock()
    with served(root, clock) as stub:
        mine = stub.InitProducerId(pb.InitProducerIdRequest()).producer_id
        other = stub.InitProducerId(pb.InitProducerIdRequest()).producer_id
        placed = {number: (produce(stub, mine, number), produce(stub, other, number))[0] for number in range(BATCHES)}
    if is_merged:
        merged = deltalake.DeltaTable(str(root / "topics/orders/0")).optimize.compact()
        assert merged["numFilesRemoved"] > 1
    clock.at_ms += HOUR_MS
    with served(root, clock) as stub:
        for number in (3, BATCHES - 1, 0, 17):
            again = produce(stub, mine, number)
            assert (again.error_code, again.base_offset) == (0, placed[number].base_offset)
            assert list(again.offsets) in ([], [placed[number].base_offset + position for position in range(PER_BATCH)])
        following = produce(stub, mine, BATCHES)
        assert following.base_offset == 2 * BATCHES * PER_BATCH, "the next batch goes on where the log ends"
        gap = produce(stub, mine, BATCHES + 5)
        assert gap.error_code == pb.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER
    with bus.sql.connect(str(root)) as connection:
        counted = "SELECT count(*), count(DISTINCT (producer_id, sequence)), max(offset) + 1 FROM orders"
        records = (2 * BATCHES + 1) * PER_BATCH
        assert connection.sql(counted).fetchall() == [(records, records, records)]
