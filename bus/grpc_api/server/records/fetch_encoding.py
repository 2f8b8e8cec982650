"""Answers of fetches as bytes of a `pb.FetchResponse`: batches of the log as messages, and how much there is room for;
on the event loop if that is quick, else in a thread.

Guards two promises: what is not in the Arrow payload is in the envelope, as `LogBatch` in bus.proto says; and an answer
takes no more on the wire than it was allowed, but for a first batch that is larger. What a batch takes there is judged
before it is encoded: a few bytes of records may need a thousand around them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa

from bus.broker_api.fetch import FetchedPartition
from bus.errors import ErrorCode, Refused, show_names
from bus.grpc_api.server.conversions import encode_leader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, tag_of
from bus.model import LogBatch, sequence_after
from bus.records.arrow_batches import complete_columns, concat_columns, encode_arrow_buffer
from bus.records.log_schema import LOG_COLUMNS

# What the event loop encodes by itself, in two milliseconds or so.
_QUICK_BYTES_MAX = 1280 * 1024
_QUICK_BATCHES_MAX = 128
_QUICK_PARTITIONS_MAX = 256
_QUICK_PLAIN_RECORDS_MAX = 256

_PARTITIONS = tag_of(pb.FetchResponse, "partitions")
_BATCHES = tag_of(pb.PartitionFetchResponse, "batches")


@dataclass(slots=True)
class Answer:
    """`bytes_max` bounds plain records; of other batches there are no more than it allows. `in_session`: None for an
    answer that stands alone; else whether the session goes on."""

    correlation_id: int
    columns: Sequence[str]
    is_plain: bool
    results: Sequence[FetchedPartition]
    bytes_max: int
    listener: str  # of the client
    in_session: bool | None = None

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
    """The partitions with records, an error or a read replica; all of them if none has records or an error, or in a
    session. Touches nothing but `answer`."""
    head = pb.FetchResponse(correlation_id=answer.correlation_id, in_session=bool(answer.in_session))
    response: list[Any] = [head.SerializeToString()]
    has_news = any(isinstance(one.result, Refused) or one.result.batches for one in answer.results)
    bytes_left = answer.bytes_max
    for fetched in answer.results:
        result = fetched.result
        if _is_silent(fetched) and (has_news if answer.in_session is None else not _is_known(fetched)):
            continue
        message = _encode(fetched, answer.listener)
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


def _is_silent(fetched: FetchedPartition) -> bool:
    """No error, no records, and no other broker to be asked."""
    return not isinstance(fetched.result, Refused) and not fetched.result.batches and fetched.read_replica is None


def _is_known(fetched: FetchedPartition) -> bool:
    """The log, as far as the reader knows it."""
    return isinstance(fetched.result, Refused) or fetched.result.version >= 0


def _encode(fetched: FetchedPartition, listener: str) -> pb.PartitionFetchResponse:
    partition, result = fetched.partition, fetched.result
    if isinstance(result, Refused):
        return pb.PartitionFetchResponse(
            topic=partition.topic,
            partition=partition.partition,
            error_code=int(result.code),  # type: ignore[arg-type]
            error_message=result.message,
            high_watermark=-1,
            log_start_offset=-1,
            version=-1,
            current_leader=encode_leader(fetched.leader, listener),
        )
    return pb.PartitionFetchResponse(
        topic=partition.topic,
        partition=partition.partition,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start,
        version=result.version,
        preferred_read_replica=fetched.read_replica,
    )


DEFAULT_FETCH_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch")

# Neighbouring batches below this many records are merged on the way out: an envelope each would cost more than them.
_SMALL_BATCH_RECORDS = 512
# At most, of an envelope with all columns of the log: messages of the schema and of the batch, and padding.
_ENVELOPE_BYTES = 3 * 1024
# A record's offset, timestamp, identity and sequence, where a merged batch has to have them as columns.
_MERGED_RECORD_BYTES = 48
# So many plain records are made messages at a time, and so many at most for one partition of an answer.
_PLAIN_SLICE_RECORDS = 256
PLAIN_RECORDS_MAX = 100_000


def check_columns(columns: Sequence[str]) -> Refused | None:
    unknown = [name for name in columns if name not in LOG_COLUMNS]
    if not unknown:
        if len(set(columns)) == len(columns):
            return None
        return Refused(ErrorCode.INVALID_REQUEST, f"expected each column once, found {show_names(columns)}")
    return Refused(
        ErrorCode.INVALID_REQUEST, f"expected columns among {', '.join(LOG_COLUMNS)}, found {show_names(unknown)}"
    )


_ARROW = tag_of(pb.LogBatch, "arrow")


def encode_batches(batches: Sequence[LogBatch], columns: Sequence[str]) -> Iterator[list[Any]]:
    """Each a serialized `pb.LogBatch` in pieces, so that the records are copied once, into the response."""
    for group in _groups(batches):
        batch = group[0] if len(group) == 1 else _merge(group, columns)
        # Where offsets have holes, only the column tells them; no client can do without.
        names = [name for name in batch.columns.schema.names if name in columns or name == "offset"]
        if batch.timestamp_ms is not None and "timestamp" in names:
            names.remove("timestamp")
        envelope = pb.LogBatch(
            base_offset=batch.base_offset,
            next_offset=batch.next_offset,
            record_count=batch.record_count,
            leader_epoch=batch.leader_epoch,
            timestamp_type=int(batch.timestamp_type),
            timestamp_ms=batch.timestamp_ms,
            producer_id=_value_in_envelope(batch, "producer_id", columns),
            producer_epoch=_value_in_envelope(batch, "producer_epoch", columns),
            base_sequence=_value_in_envelope(batch, "sequence", columns),
        ).SerializeToString()
        if names:
            yield [envelope, *encode_field(_ARROW, [encode_arrow_buffer(batch.columns.select(names))])]
        else:
            yield [envelope]


_PRODUCER_COLUMNS = {"producer_id": "producer_id", "producer_epoch": "producer_epoch", "sequence": "base_sequence"}


def _value_in_envelope(batch: LogBatch, column: str, columns: Sequence[str]) -> int | None:
    """Return the value in the envelope for a producer's column that was asked for and is not in the payload."""
    if batch.producer is None or column not in columns or column in batch.columns.schema.names:
        return None
    return int(getattr(batch.producer, _PRODUCER_COLUMNS[column]))


def _groups(batches: Sequence[LogBatch]) -> Iterator[list[LogBatch]]:
    """Runs of small neighbours that share what the envelope says; every other batch alone."""
    group: list[LogBatch] = []
    for batch in batches:
        if group and not _are_merged(group[-1], batch):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _are_merged(before: LogBatch, batch: LogBatch) -> bool:
    return (
        batch.record_count < _SMALL_BATCH_RECORDS
        and before.record_count < _SMALL_BATCH_RECORDS
        and batch.leader_epoch == before.leader_epoch
        and batch.timestamp_type == before.timestamp_type
    )


def fit_batches(batches: Sequence[LogBatch], bytes_max: int, *, is_first: bool) -> tuple[Sequence[LogBatch], int]:
    """The first of `batches` that take at most `bytes_max` on the wire, and what they take; if `is_first`, at least
    one."""
    size = 0
    for position, batch in enumerate(batches):
        cost = batch.size_bytes
        if batch.record_count < _SMALL_BATCH_RECORDS:
            cost += batch.record_count * _MERGED_RECORD_BYTES
        if position == 0 or not _are_merged(batches[position - 1], batch):
            cost += _ENVELOPE_BYTES
        if size + cost > bytes_max and not (is_first and position == 0):
            return batches[:position], size
        size += cost
    return batches, size


def _merge(group: list[LogBatch], columns: Sequence[str]) -> LogBatch:
    producer = group[0].producer if _is_one_run(group) else None
    envelope = ("timestamp_type", "leader_epoch", *(() if producer is None else _PRODUCER_COLUMNS))
    is_dense = all("offset" not in batch.columns.schema.names for batch in group) and all(
        before.next_offset == after.base_offset for before, after in pairwise(group)
    )
    names = [name for name in columns if name not in envelope and name != "offset"]
    value_type = group[0].columns.schema.field("value").type
    merged = concat_columns(group, names if is_dense else ["offset", *names], value_type)
    return LogBatch(
        base_offset=group[0].base_offset,
        next_offset=group[-1].next_offset,
        record_count=sum(batch.record_count for batch in group),
        size_bytes=merged.nbytes,
        leader_epoch=group[0].leader_epoch,
        timestamp_type=group[0].timestamp_type,
        timestamp_ms=None,
        timestamp_max_ms=max(batch.timestamp_max_ms for batch in group),
        columns=merged,
        producer=producer,
    )


def _is_one_run(group: Sequence[LogBatch]) -> bool:
    """True if the batches are one producer's, each of them with the sequences that follow those of the one before."""
    if any(batch.producer is None or "sequence" in batch.columns.schema.names for batch in group):
        return False
    return all(
        after.producer == replace(stamp, base_sequence=sequence_after(stamp.base_sequence, before.record_count))
        for before, after in pairwise(group)
        if (stamp := before.producer) is not None
    )


def encode_records(batches: Sequence[LogBatch], first_offset: int, bytes_max: int) -> Iterator[pb.Record]:
    """The records from `first_offset` on, one message each, at least one and about `bytes_max` of them: for clients
    without Arrow. A typed value is its JSON text."""
    size = 0
    for record in islice(_records(batches, first_offset), PLAIN_RECORDS_MAX):
        yield record
        size += record.ByteSize() + 4
        if size >= bytes_max:
            return


def _records(batches: Sequence[LogBatch], first_offset: int) -> Iterator[pb.Record]:
    for batch in batches:
        value_type = batch.columns.schema.field("value").type
        whole = complete_columns(batch, DEFAULT_FETCH_COLUMNS, value_type)
        start = int(whole.column("offset").to_numpy().searchsorted(first_offset))
        for begin in range(start, whole.num_rows, _PLAIN_SLICE_RECORDS):
            columns = whole.slice(begin, _PLAIN_SLICE_RECORDS)
            values = _value_bytes(columns.column("value"))
            times = columns.column("timestamp").view(pa.int64()).to_pylist()
            rows = columns.drop_columns(["value", "timestamp"]).to_pylist()
            for row, value, timestamp_us in zip(rows, values, times, strict=True):
                yield pb.Record(
                    offset=row["offset"],
                    key=row["key"],
                    value=value,
                    headers=[pb.Header(key=header["key"], value=header["value"]) for header in row["headers"] or ()],
                    timestamp_ms=timestamp_us // 1000,
                    timestamp_type=row["timestamp_type"],
                    leader_epoch=row["leader_epoch"],
                )


def _value_bytes(values: pa.Array) -> list[bytes | None]:
    """The values of records, typed or not; a null one is None. A typed value (a struct) is JSON with its fields in
    their order, base64 for bytes, ISO 8601 for times: no two values of a topic have the same text."""
    if pa.types.is_binary(values.type):
        plain: list[bytes | None] = values.to_numpy(zero_copy_only=False).tolist()
        return plain
    return [None if value is None else _encode_struct(value) for value in values.to_pylist()]


def _encode_struct(value: Any) -> bytes:
    return json.dumps(value, default=_encode_scalar, ensure_ascii=False, separators=(",", ":")).encode()


def _encode_scalar(value: Any) -> str:
    """Encode a value that JSON has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
