"""Very many producers on one partition, played by the raw stubs: an identity each, and one small batch.

Nothing of the SDK: ten thousand of its producers would be a load of their own. Guards one promise: every identity was
given by the broker, and every batch was acknowledged by it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pyarrow as pa

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow

_IN_FLIGHT_MAX = 256
_TIMEOUT_S = 600.0


class ProducerCrowd:
    """Over one connection of its own; `with` ends it."""

    def __init__(self, address: str, *, value_bytes: int) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = bus_pb2_grpc.BusStub(self._channel)
        self._payload = encode_arrow(pa.record_batch({"value": pa.array([bytes(value_bytes)], pa.binary())}))

    def new_producers(self, count: int) -> list[pb.InitProducerIdResponse]:
        """Raises `RuntimeError` for an identity that was refused or given twice."""
        identities = []
        for start in range(0, count, _IN_FLIGHT_MAX):
            asked = [
                self._stub.InitProducerId.future(pb.InitProducerIdRequest(), timeout=_TIMEOUT_S)
                for _ in range(start, min(count, start + _IN_FLIGHT_MAX))
            ]
            identities += [answer.result() for answer in asked]
        refused = next((identity for identity in identities if identity.error_code), None)
        if refused is not None:
            raise RuntimeError(f"InitProducerId: {pb.ErrorCode.Name(refused.error_code)}: {refused.error_message}")
        different = len({identity.producer_id for identity in identities})
        if different != count:
            raise RuntimeError(f"expected {count} different producer ids, found {different}")
        return identities

    def produce_one_each(self, topic: str, producers: list[pb.InitProducerIdResponse]) -> None:
        """The first batch, of one record, of each producer, to partition 0."""
        self._produce(
            [
                pb.PartitionProduceData(
                    topic=topic,
                    arrow=self._payload,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=0,
                )
                for producer in producers
            ]
        )

    def produce_unstamped(self, topic: str, count: int) -> None:
        """As many batches of the same size from nobody in particular."""
        self._produce([pb.PartitionProduceData(topic=topic, arrow=self._payload)] * count)

    def _produce(self, batches: list[pb.PartitionProduceData]) -> None:
        """Raises `RuntimeError` for a batch that was refused."""
        room = threading.Semaphore(_IN_FLIGHT_MAX)

        def requests() -> Iterator[pb.ProduceRequest]:
            for number, batch in enumerate(batches):
                room.acquire()
                yield pb.ProduceRequest(correlation_id=number, acks=-1, partitions=[batch])

        answered = 0
        for response in self._stub.Produce(requests(), timeout=_TIMEOUT_S):
            room.release()
            answered += 1
            for partition in response.partitions:
                if partition.error_code:
                    code = pb.ErrorCode.Name(partition.error_code)
                    room.release(_IN_FLIGHT_MAX)
                    raise RuntimeError(f"batch {response.correlation_id}: {code}: {partition.error_message}")
        if answered != len(batches):
            raise RuntimeError(f"expected {len(batches)} answers, found {answered}")

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> ProducerCrowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
