"""A producer of transactions that makes each call by itself, as a client library does, over generated stubs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow

NONE = pb.ERROR_CODE_NONE


@dataclass
class Producer:
    """The calls of a client library, one by one."""

    stub: Any
    transactional_id: str = "payments"
    timeout_ms: int = 60_000
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def init(self, **changed: Any) -> pb.InitProducerIdResponse:
        request = pb.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms, **changed
        )
        answer = self.stub.InitProducerId(request, timeout=30)
        if answer.error_code == NONE:
            self.go_on_as(answer.producer_id, answer.producer_epoch)
        return answer

    def go_on_as(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences.clear()

    def send(
        self, values: Sequence[bytes], partition: int = 0, topic: str = "t", *, acks: int = -1
    ) -> pb.PartitionProduceResponse:
        base = self.sequences.get((topic, partition), 0)
        data = pb.PartitionProduceData(
            topic=topic,
            partition=partition,
            arrow=encode_arrow(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=base,
        )
        request = pb.ProduceRequest(transactional_id=self.transactional_id, acks=acks, partitions=[data])
        answer = self.stub.ProduceOnce(request, timeout=30).partitions[0]
        if answer.error_code == NONE:
            self.sequences[topic, partition] = base + len(values)
        return answer

    def end(self, *, is_commit: bool, ends: Sequence[pb.TransactionEnd] | None = None) -> pb.EndTxnResponse:
        named = [
            pb.TransactionEnd(topic=topic, partition=partition, last_sequence=following - 1)
            for (topic, partition), following in self.sequences.items()
        ]
        request = pb.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            is_commit=is_commit,
            ends=named if ends is None else ends,
        )
        return self.stub.EndTxn(request, timeout=60)

    def commit(self, ends: Sequence[pb.TransactionEnd] | None = None) -> pb.EndTxnResponse:
        answer = self.end(is_commit=True, ends=ends)
        if answer.error_code == NONE:
            self.go_on_as(answer.producer_id, answer.producer_epoch)
        return answer

    def abort(self) -> pb.EndTxnResponse:
        answer = self.end(is_commit=False)
        if answer.error_code == NONE:
            self.go_on_as(answer.producer_id, answer.producer_epoch)
        return answer
