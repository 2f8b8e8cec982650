"""Answers of fetches as bytes of a `pb.FetchResponse`; on the event loop if that is quick, else in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bus.broker_api.fetch import FetchedPartition
from bus.errors import Refused
from bus.grpc_api.server.fetch_encoding import encode_batches, encode_records
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, tag_of
from bus.model import TopicPartition
from bus.runtime.partitions.fetches import FetchResult

# What the event loop encodes by itself, in two milliseconds or so.
_QUICK_BYTES_MAX = 1280 * 1024
_QUICK_BATCHES_MAX = 128
_QUICK_PARTITIONS_MAX = 256
_QUICK_PLAIN_RECORDS_MAX = 256

_PARTITIONS = tag_of(pb.FetchResponse, "partitions")
_BATCHES = tag_of(pb.PartitionFetchResponse, "batches")


@dataclass(slots=True)
class Answer:
    """`bytes_max` bounds plain records; of other batches there are no more than it allows."""

    correlation_id: int
    columns: Sequence[str]
    is_plain: bool
    results: Sequence[FetchedPartition]
    bytes_max: int

    @property
    def is_quick(self) -> bool:
        if len(self.results) > _QUICK_PARTITIONS_MAX:
            return False
        results = [fetched.result for fetched in self.results]
        found = [batch for result in results if not isinstance(result, Refused) for batch in result.batches]
        if len(found) > _QUICK_BATCHES_MAX or sum(batch.size_bytes for batch in found) > _QUICK_BYTES_MAX:
            return False
        return not self.is_plain or sum(batch.record_count for batch in found) <= _QUICK_PLAIN_RECORDS_MAX


def encode_answer(answer: Answer) -> bytes:
    """The partitions with records or an error; all of them if none has. Touches nothing but `answer`."""
    response: list[Any] = [pb.FetchResponse(correlation_id=answer.correlation_id).SerializeToString()]
    has_news = any(isinstance(one.result, Refused) or one.result.batches for one in answer.results)
    bytes_left = answer.bytes_max
    for fetched in answer.results:
        result = fetched.result
        if has_news and not isinstance(result, Refused) and not result.batches:
            continue
        message = _encode(fetched.partition, result)
        pieces: list[Any] = []
        if not isinstance(result, Refused):
            if answer.is_plain:
                if result.batches and bytes_left <= 0:
                    continue
                message.records.records.extend(encode_records(result.batches, fetched.offset, bytes_left))
                bytes_left -= message.ByteSize()
            else:
                for batch in encode_batches(result.batches, answer.columns):
                    pieces += encode_field(_BATCHES, batch)
        response += encode_field(_PARTITIONS, [message.SerializeToString(), *pieces])
    return b"".join(response)


def _encode(partition: TopicPartition, result: FetchResult) -> pb.PartitionFetchResponse:
    if isinstance(result, Refused):
        return pb.PartitionFetchResponse(
            topic=partition.topic,
            partition=partition.partition,
            error_code=int(result.code),  # type: ignore[arg-type]
            error_message=result.message,
            high_watermark=-1,
            log_start_offset=-1,
            version=-1,
        )
    return pb.PartitionFetchResponse(
        topic=partition.topic,
        partition=partition.partition,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start,
        version=result.version,
    )
