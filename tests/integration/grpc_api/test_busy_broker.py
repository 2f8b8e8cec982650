"""A broker whose disk stands still: what has to go on does, and what waits is bounded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage_on
from tests.support.broker_thread import running_broker
from tests.support.memory_store import MemoryStore

BATCH = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"x" * 5_000])], names=["value"]))


class StuckStore:
    """Writes of records into the topic `t` wait until the gate is open."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write_unique(self, key: str, data: Any) -> None:
        if key.startswith("topics/t/"):
            assert self.gate.wait(50)
        self._store.write_unique(key, data)


@contextmanager
def stuck_broker(config: BrokerConfig) -> Iterator[tuple[bus_pb2_grpc.BusStub, StuckStore]]:
    store = StuckStore()
    storage = open_storage_on(store)  # type: ignore[arg-type]
    with (
        running_broker("memory", config=config, storage=storage) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        stub = bus_pb2_grpc.BusStub(channel)
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=3)]))
        store.gate.clear()
        try:
            yield stub, store
        finally:
            store.gate.set()


def request(partition: int, correlation_id: int = 0) -> pb.ProduceRequest:
    data = pb.PartitionProduceData(topic="t", partition=partition, arrow=BATCH)
    return pb.ProduceRequest(correlation_id=correlation_id, partitions=[data])


def test_identities_do_not_wait_behind_produce_traffic() -> None:
    # One thread for commits, and a commit that stands still is in it.
    with stuck_broker(BrokerConfig(num_io_threads=1)) as (stub, store):
        stuck = [stub.ProduceOnce.future(request(partition)) for partition in (0, 1)]
        for name in ("", "billing"):
            answer = stub.InitProducerId(pb.InitProducerIdRequest(name=name), timeout=20)
            assert answer.error_code == 0
        asked = [pb.ResumeProducerPartition(topic="t", partition=2)]
        resume = pb.ResumeProducerRequest(producer_id=answer.producer_id, producer_epoch=0, partitions=asked)
        (resumed,) = stub.ResumeProducer(resume, timeout=20).partitions
        assert (resumed.error_code, resumed.last_sequence) == (0, -1)
        assert not any(call.done() for call in stuck)
        store.gate.set()
        assert [call.result(50).partitions[0].error_code for call in stuck] == [0, 0]


def test_resuming_a_stuck_partition_is_answered_in_time_and_holds_up_no_other() -> None:
    with stuck_broker(BrokerConfig(request_timeout_ms=300)) as (stub, store):
        stuck = stub.ProduceOnce.future(request(0))
        producer_id = stub.InitProducerId(pb.InitProducerIdRequest()).producer_id
        asked = [pb.ResumeProducerPartition(topic="t", partition=partition) for partition in (0, 1)]
        resume = pb.ResumeProducerRequest(producer_id=producer_id, partitions=asked)
        waiting, free = stub.ResumeProducer(resume, timeout=20).partitions
        assert (free.error_code, free.last_sequence) == (0, -1)
        assert waiting.error_code == pb.ERROR_CODE_REQUEST_TIMED_OUT
        assert waiting.error_message == "what was queued before was not committed within 300 ms"
        assert stuck.result(50).partitions[0].error_code == pb.ERROR_CODE_REQUEST_TIMED_OUT
        store.gate.set()


def test_requests_that_wait_are_bounded_for_all_clients_together() -> None:
    with stuck_broker(BrokerConfig(queued_max_request_bytes=10_000)) as (stub, store):
        opened = [stub.Produce(iter([request(partition, number) for number in range(8)])) for partition in range(3)]
        answered: queue.Queue[grpc.Future] = queue.Queue()
        calls = [stub.ProduceOnce.future(request(0)) for _ in range(6)]
        for call in calls:
            call.add_done_callback(answered.put)
        # Two of them fill the bound, if the streams have not yet; the others are refused at once.
        waits = []
        for _ in range(4):
            refused = answered.get(timeout=20).result()
            assert refused.partitions[0].error_code == pb.ERROR_CODE_THROTTLING_QUOTA_EXCEEDED
            assert "queued.max.request.bytes" in refused.partitions[0].error_message
            waits.append(refused.throttle_time_ms)
        assert sorted(waits) == [100, 1000, 1000, 1000], "nothing drains"
        store.gate.set()
        for answers in opened:
            found = [(answer.correlation_id, answer.partitions[0].error_code) for answer in answers]
            assert found == [(number, 0) for number in range(8)], "a stream is held back and loses nothing"
        for call in calls:
            call.result(50)
        assert stub.ProduceOnce(request(0), timeout=20).partitions[0].error_code == 0
