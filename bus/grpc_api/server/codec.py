"""Records between the wire and the log.

Guards the rule of `LogBatch` in bus.proto: what is not in the Arrow payload is in the envelope. Checks everything that
comes in; a batch that leaves here towards the log is sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from bus.arrow_batches import (
    MalformedRecords,
    MistimedRecords,
    check_records,
    complete_columns,
    decode_records,
    encode_arrow_buffer,
    records_from_rows,
)
from bus.errors import ErrorCode, Refused, show_names
from bus.grpc_api.server.arrow_claims import Allowance, PayloadTooLarge, check_claims
from bus.grpc_api.server.typed_values import value_bytes
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, tag_of
from bus.log_schema import LOG_COLUMNS
from bus.model import (
    TIMESTAMP_MS_MAX,
    TIMESTAMP_STORED_MS_MAX,
    TIMESTAMP_STORED_MS_MIN,
    LogBatch,
    RecordBatch,
    sequence_after,
)

DEFAULT_FETCH_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch")

# Neighbouring batches below this many records are merged on the way out: an envelope each would cost more than them.
_SMALL_BATCH_RECORDS = 512


def decode_produce(
    data: pb.PartitionProduceData, now_ms: int, payload: bytes | memoryview | None, allowance: Allowance
) -> RecordBatch | Refused:
    """`payload`: the Arrow bytes, if they were cut out of `data` or were packed in it."""
    timestamp_ms = data.timestamp_ms if data.HasField("timestamp_ms") else now_ms
    if data.uncompressed_bytes and not data.codec:
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected a codec with uncompressed_bytes={data.uncompressed_bytes}, found none"
        )
    try:
        form = "arrow" if payload is not None else data.WhichOneof("payload")
        match form:
            case "arrow":
                payload = data.arrow if payload is None else payload
                check_claims(payload, allowance)
                return decode_records(payload, default_timestamp_ms=timestamp_ms)
            case "records":
                return check_records(_batch_of(data.records.records), default_timestamp_ms=timestamp_ms)
            case _:
                return Refused(ErrorCode.INVALID_RECORD, "expected 'arrow' or 'records', found neither")
    except MistimedRecords as error:
        return Refused(ErrorCode.INVALID_TIMESTAMP, str(error))
    except MalformedRecords as error:
        return Refused(ErrorCode.INVALID_RECORD, str(error))
    except PayloadTooLarge as error:
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, str(error))


def _batch_of(records: Sequence[pb.Record]) -> pa.RecordBatch:
    return records_from_rows(
        [
            (
                record.key if record.HasField("key") else None,
                record.value if record.HasField("value") else None,
                [(header.key, header.value if header.HasField("value") else None) for header in record.headers],
                _timestamp_ms(record),
            )
            for record in records
        ]
    )


def _timestamp_ms(record: pb.Record) -> int | None:
    if not record.HasField("timestamp_ms"):
        return None
    if not TIMESTAMP_STORED_MS_MIN <= record.timestamp_ms <= TIMESTAMP_STORED_MS_MAX:
        raise MistimedRecords(f"expected timestamps from 0 to {TIMESTAMP_MS_MAX}, found {record.timestamp_ms}")
    return record.timestamp_ms


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
        # Where offsets have holes, only the column tells them; nobody can do without.
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
            producer_id=_told(batch, "producer_id", columns),
            producer_epoch=_told(batch, "producer_epoch", columns),
            base_sequence=_told(batch, "sequence", columns),
        ).SerializeToString()
        if names:
            yield [envelope, *encode_field(_ARROW, [encode_arrow_buffer(batch.columns.select(names))])]
        else:
            yield [envelope]


_PRODUCER_COLUMNS = {"producer_id": "producer_id", "producer_epoch": "producer_epoch", "sequence": "base_sequence"}


def _told(batch: LogBatch, column: str, columns: Sequence[str]) -> int | None:
    """What the envelope says of a producer's column that was asked for and is not in the payload."""
    if batch.producer is None or column not in columns or column in batch.columns.schema.names:
        return None
    return int(getattr(batch.producer, _PRODUCER_COLUMNS[column]))


def _groups(batches: Sequence[LogBatch]) -> Iterator[list[LogBatch]]:
    """Runs of small neighbours that share what the envelope says; every other batch alone."""
    group: list[LogBatch] = []
    for batch in batches:
        if group and not (
            batch.record_count < _SMALL_BATCH_RECORDS
            and group[-1].record_count < _SMALL_BATCH_RECORDS
            and batch.leader_epoch == group[-1].leader_epoch
            and batch.timestamp_type == group[-1].timestamp_type
        ):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _merge(group: list[LogBatch], columns: Sequence[str]) -> LogBatch:
    producer = group[0].producer if _is_one_run(group) else None
    envelope = ("timestamp_type", "leader_epoch", *(() if producer is None else _PRODUCER_COLUMNS))
    is_dense = all("offset" not in batch.columns.schema.names for batch in group) and all(
        before.next_offset == after.base_offset for before, after in pairwise(group)
    )
    names = [name for name in columns if name not in envelope and name != "offset"]
    value_type = group[0].columns.schema.field("value").type
    parts = [complete_columns(batch, names if is_dense else ["offset", *names], value_type) for batch in group]
    merged = pa.concat_batches(parts)
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
    """Whether the batches are one producer's, each of them with the sequences that follow those of the one before."""
    if any(batch.producer is None or "sequence" in batch.columns.schema.names for batch in group):
        return False
    return all(
        after.producer == replace(stamp, base_sequence=sequence_after(stamp.base_sequence, before.record_count))
        for before, after in pairwise(group)
        if (stamp := before.producer) is not None
    )


def encode_records(batches: Sequence[LogBatch], first_offset: int) -> Iterator[pb.Record]:
    """The records from `first_offset` on, one message each: for clients without Arrow. A typed value is its JSON
    text."""
    for batch in batches:
        value_type = batch.columns.schema.field("value").type
        columns = complete_columns(batch, DEFAULT_FETCH_COLUMNS, value_type)
        values = value_bytes(columns.column("value"))
        times = columns.column("timestamp").view(pa.int64()).to_pylist()
        rows = columns.drop_columns(["value", "timestamp"]).to_pylist()
        for row, value, timestamp_us in zip(rows, values, times, strict=True):
            if row["offset"] < first_offset:
                continue
            yield pb.Record(
                offset=row["offset"],
                key=row["key"],
                value=value,
                headers=[pb.Header(key=header["key"], value=header["value"]) for header in row["headers"] or ()],
                timestamp_ms=timestamp_us // 1000,
                timestamp_type=row["timestamp_type"],
                leader_epoch=row["leader_epoch"],
            )
