"""The records of a produce request, from bytes to checked batches: on the event loop if that is quick, or in a thread.

Guards two promises: the loop is held by no request for longer than `QUICK_BYTES_MAX` take;
and each partition of a request gets a batch or a refusal of its own, also where decoding fails in a way that nothing
here foresaw. Decides nothing about a partition: that may change while a thread is at work.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bus.broker_api.produce import DecodedRecords
from bus.broker_api.requests import TakesLong
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.arrow_claims import Allowance
from bus.grpc_api.server.codec import decode_produce
from bus.grpc_api.server.payloads import count_packed_bytes, unpack_partition
from bus.grpc_api.server.produce_wire import ProduceCall

_log = logging.getLogger(__name__)

# Decoded in a millisecond or two, at worst.
QUICK_BYTES_MAX = 256 * 1024


class CallPayload:
    """A `Payload` of the API. All of a request's records unpack to at most `bytes_max`."""

    def __init__(self, call: ProduceCall, bytes_max: int) -> None:
        self.size_bytes = call.size_bytes
        self._call = call
        self._bytes_max = bytes_max

    def decode_quickly(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]:
        if self.size_bytes > QUICK_BYTES_MAX or count_packed_bytes(self._call.message) > QUICK_BYTES_MAX:
            raise TakesLong
        return _decode(self._call, refused, self._bytes_max, now_ms, QUICK_BYTES_MAX)

    def decode(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]:
        return _decode(self._call, refused, self._bytes_max, now_ms, None)


def _decode(
    call: ProduceCall, refused: Sequence[Refused | None], bytes_max: int, now_ms: int, quick_bytes_max: int | None
) -> list[DecodedRecords]:
    packed, plain = Allowance(bytes_max), Allowance(bytes_max, quick_bytes_max)
    return [refusal or _decode_partition(call, index, packed, plain, now_ms) for index, refusal in enumerate(refused)]


def _decode_partition(
    call: ProduceCall, index: int, packed: Allowance, plain: Allowance, now_ms: int
) -> DecodedRecords:
    data, payload = call.message.partitions[index], call.payload(index)
    try:
        unpacked = unpack_partition(data, payload, packed) if data.codec else payload
        return unpacked if isinstance(unpacked, Refused) else decode_produce(data, now_ms, unpacked, plain)
    except TakesLong:
        raise
    except Exception:
        _log.exception("records could not be decoded", extra={"topic": data.topic, "partition": data.partition})
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed to decode these records; see its log")
