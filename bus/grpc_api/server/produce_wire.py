"""Produce requests off the wire, without a copy of the records.

The generated code copies a payload twice (into the message, out of it again), on the event loop and with the
interpreter held. Here a large Arrow payload is cut out of the request's bytes as a view, and the generated code parses
what is left. Guards two promises: a request means what the generated code would take it for, and the generated code
makes no more objects than the bounds below allow, however few bytes they take on the wire. A request that takes long to
parse is left to a thread (`begin_parse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bus.broker_api.requests import TakesLong
from bus.errors import reduce_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, fields_of, tag_of

# Below, two copies cost less than looking for the payload.
_CUT_BYTES_MIN = 32 * 1024
PARTITIONS_MAX = 20_000
# Plain records and their headers. Arrow has no such bound: there, a record makes no object.
PLAIN_ITEMS_MAX = 100_000
_FIELDS_MAX = 10 * PARTITIONS_MAX + 8 * PLAIN_ITEMS_MAX
# What the event loop parses by itself: about two milliseconds of work.
_QUICK_FIELDS_MAX = 2_000
_QUICK_PLAIN_BYTES_MAX = 16 * 1024
# A larger request whose fields cannot be followed here is refused, though the generated code may know better.
_UNBOUNDED_BYTES_MAX = 1024 * 1024


Payload = bytes | memoryview


class TooManyItems(ValueError):
    """A request has more items than the broker looks at."""

    def __init__(self, name: str, items_max: int) -> None:
        super().__init__(f"expected a {name} of at most {items_max} items, found more; send several requests")

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """`payloads` is empty, or has an entry for each partition of `message`: the Arrow bytes that were cut out of it,
    or None if it still has its own. A payload keeps at most twice its size in memory."""

    message: pb.ProduceRequest
    payloads: Sequence[Payload | None]
    size_bytes: int

    def payload(self, index: int) -> Payload | None:
        return self.payloads[index] if self.payloads else None


@dataclass(frozen=True, slots=True)
class UnparsedCall:
    """A request that takes long to parse: `parse_call(raw)` is to run in a thread."""

    raw: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.raw)


def begin_parse(request: bytes) -> ProduceCall | UnparsedCall:
    """Raises as `parse_call` does."""
    try:
        return _parse(request, _Bounds(_QUICK_FIELDS_MAX, is_quick=True))
    except TakesLong:
        return UnparsedCall(request)


def parse_call(request: bytes) -> ProduceCall:
    """Raises what the generated code raises, and `TooManyItems`."""
    return _parse(request, _Bounds(_FIELDS_MAX, is_quick=False))


class _Bounds:
    """How much of a request may still be looked at."""

    def __init__(self, fields_max: int, *, is_quick: bool) -> None:
        self._fields_left = fields_max
        self._is_quick = is_quick
        self._partitions = self._plain_bytes = self._plain_items = 0

    def take_field(self) -> None:
        self._fields_left -= 1
        if self._fields_left < 0:
            raise self._exceeded(PARTITIONS_MAX)

    def take_partition(self) -> None:
        self._partitions += 1
        if self._partitions > PARTITIONS_MAX:
            raise self._exceeded(PARTITIONS_MAX)

    def take_plain(self, records: memoryview) -> None:
        """A `pb.RecordList`."""
        self._plain_bytes += len(records)
        if self._is_quick:
            if self._plain_bytes > _QUICK_PLAIN_BYTES_MAX:
                raise TakesLong
            return
        for tag, _, record in fields_of(records):
            self._take_plain_item()
            if tag == _RECORD:
                for inner, _, _ in fields_of(record):
                    self.take_field()
                    if inner == _HEADERS:
                        self._take_plain_item()

    def _take_plain_item(self) -> None:
        self._plain_items += 1
        if self._plain_items > PLAIN_ITEMS_MAX:
            raise self._exceeded(PLAIN_ITEMS_MAX)

    def _exceeded(self, items_max: int) -> Exception:
        return TakesLong() if self._is_quick else TooManyItems(pb.ProduceRequest.DESCRIPTOR.name, items_max)


def _parse(request: bytes, bounds: _Bounds) -> ProduceCall:
    size = len(request)
    if size >= _CUT_BYTES_MIN:
        try:
            rest, payloads = _cut_partitions(memoryview(request), bounds)
        except TooManyItems:
            raise
        except (IndexError, ValueError) as error:
            if size > _UNBOUNDED_BYTES_MAX:
                raise DecodeError(str(error)) from None
            # The generated code says what is wrong with it.
        else:
            return ProduceCall(pb.ProduceRequest.FromString(rest), payloads, size)
    return ProduceCall(pb.ProduceRequest.FromString(request), (), size)


_PARTITIONS = tag_of(pb.ProduceRequest, "partitions")
_ARROW = tag_of(pb.PartitionProduceData, "arrow")
_RECORDS = tag_of(pb.PartitionProduceData, "records")
_RECORD = tag_of(pb.RecordList, "records")
_HEADERS = tag_of(pb.Record, "headers")


def _cut_partitions(request: memoryview, bounds: _Bounds) -> tuple[bytes, list[Payload | None]]:
    rest: list[bytes | memoryview] = []
    payloads: list[Payload | None] = []
    for tag, field, value in fields_of(request):
        bounds.take_field()
        if tag == _PARTITIONS:
            bounds.take_partition()
            partition, payload = _cut_payload(value, bounds)
            rest += encode_field(_PARTITIONS, [partition])
            # A view keeps the whole request alive for as long as its records stay in memory.
            is_most_of_it = payload is not None and len(payload) * 2 >= len(request)
            payloads.append(payload if payload is None or is_most_of_it else bytes(payload))
        else:
            rest.append(field)
    return b"".join(rest), payloads


def _cut_payload(partition: memoryview, bounds: _Bounds) -> tuple[bytes | memoryview, memoryview | None]:
    """Where a payload comes twice, or in two forms, the last one counts: the generated code knows."""
    rest: list[memoryview] = []
    payload: memoryview | None = None
    has_one_payload = True
    for tag, field, value in fields_of(partition):
        bounds.take_field()
        if tag == _RECORDS:
            bounds.take_plain(value)
        if tag == _RECORDS or (tag == _ARROW and payload is not None):
            has_one_payload = False
        if tag == _ARROW:
            payload = value
        else:
            rest.append(field)
    if not has_one_payload:
        return partition, None
    return b"".join(rest), payload
