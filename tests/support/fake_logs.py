"""A fake broker that deletes records, maintains logs and swaps files: by the contract, with nothing behind it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.fake_broker import BreakStream, Cluster, FakeBroker, Refuse

SWAP_VERSION = 12


class FakeLogBroker(FakeBroker):
    """`log_script` says what becomes of the next partitions, in the order in which they are asked for. Maintenance
    finds four files in each partition and leaves one."""

    def __init__(self, cluster: Cluster | None = None, broker_id: int = 0) -> None:
        self.log_script: deque[Refuse | BreakStream] = deque()
        self.swaps: list[pb.SwapFilesRequest] = []
        self.maintained: list[pb.MaintainLogRequest] = []
        self.maintenance_ended = threading.Event()
        super().__init__(cluster, broker_id)

    def append_offsets(self, topic: str, partition: int, count: int, timestamp_ms: int = 0) -> None:
        """So many records, in no batch that can be read."""
        log = self.cluster.topics[topic].partitions[partition]
        base = log.high_watermark
        log.batches.append(pb.LogBatch(base_offset=base, next_offset=base + count, timestamp_ms=timestamp_ms))

    # ------------------------------------------------------------ calls

    def DeleteRecords(self, request: pb.DeleteRecordsRequest, context: Any) -> pb.DeleteRecordsResponse:
        self._note("DeleteRecords", context)
        with self.cluster.changed:
            return pb.DeleteRecordsResponse(partitions=[self._delete(asked, context) for asked in request.partitions])

    def _delete(self, asked: pb.DeleteRecordsPartition, context: Any) -> pb.DeleteRecordsPartitionResponse:
        answer = pb.DeleteRecordsPartitionResponse(topic=asked.topic, partition=asked.partition)
        refusal = self._refusal(asked.topic, asked.partition, context)
        if refusal is None:
            log = self.cluster.topics[asked.topic].partitions[asked.partition]
            offset = log.high_watermark if asked.offset == -1 else asked.offset
            if offset > log.high_watermark:
                message = f"expected an offset of at most {log.high_watermark}, found {offset}"
                refusal = Refuse(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        if refusal is not None:
            answer.error_code, answer.error_message = int(refusal.code), refusal.message
            return answer
        log.log_start = max(log.log_start, offset)
        answer.low_watermark, answer.version = log.log_start, len(log.batches) + 1
        return answer

    def MaintainLog(self, request: pb.MaintainLogRequest, context: Any) -> Iterator[pb.MaintainLogResponse]:
        self._note("MaintainLog", context)
        self.maintained.append(request)
        context.add_callback(self.maintenance_ended.set)
        for number in request.partitions:
            self.gate.wait()
            refusal = self._refusal(request.topic, number, context)
            if refusal is not None:
                yield pb.MaintainLogResponse(
                    partition=number, error_code=int(refusal.code), error_message=refusal.message
                )
                continue
            yield pb.MaintainLogResponse(
                partition=number,
                version=7,
                files_before=4,
                files_after=1,
                bytes_before=4_096,
                bytes_after=1_024,
                rewritten_bytes=1_025,
                log_start=5,
                dropped_versions=3,
                deleted_files=2,
                deleted_bytes=2_048,
                is_managed=True,
            )

    def SwapFiles(self, request: pb.SwapFilesRequest, context: Any) -> pb.SwapFilesResponse:
        self._note("SwapFiles", context)
        self.swaps.append(request)
        refusal = self._refusal(request.topic, request.partition, context)
        if refusal is not None:
            return pb.SwapFilesResponse(error_code=int(refusal.code), error_message=refusal.message)
        return pb.SwapFilesResponse(version=SWAP_VERSION)

    def _refusal(self, topic: str, partition: int, context: Any) -> Refuse | None:
        step = self.log_script.popleft() if self.log_script else None
        if isinstance(step, BreakStream):
            context.abort(step.status, "as the test wants it")
        return step if isinstance(step, Refuse) else self._check(topic, partition, "")
