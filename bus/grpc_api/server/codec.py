"""Records on their way in: a payload of any form as a checked batch. One that leaves here towards the log is sound."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.arrow_claims import Allowance, PayloadTooLarge, check_claims
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import (
    TIMESTAMP_MS_MAX,
    TIMESTAMP_STORED_MS_MAX,
    TIMESTAMP_STORED_MS_MIN,
    RecordBatch,
)
from bus.records.arrow_batches import (
    MalformedRecords,
    MistimedRecords,
    check_records,
    decode_records,
    records_from_rows,
)


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
                allowance.take_plain(data.records.ByteSize())
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
