"""Produce requests off the wire, without a copy of the records.

The generated code copies a payload twice (into the message, out of it again), on the event loop and with the
interpreter held. Here a large Arrow payload is cut out of the request's bytes as a view, and the generated code parses
what is left. Guards one promise: a request means what the generated code would take it for. Whatever is not plainly a
request with one payload a partition is left to it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, fields_of, tag_of

# Below, two copies cost less than looking for the payload.
_CUT_BYTES_MIN = 32 * 1024


Payload = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """`payloads` is empty, or has an entry for each partition of `message`: the Arrow bytes that were cut out of it,
    or None if it still has its own. A payload keeps at most twice its size in memory."""

    message: pb.ProduceRequest
    payloads: Sequence[Payload | None]
    size_bytes: int

    def payload(self, index: int) -> Payload | None:
        return self.payloads[index] if self.payloads else None


def parse_call(request: bytes) -> ProduceCall:
    """Raises what the generated code raises."""
    size = len(request)
    if size >= _CUT_BYTES_MIN:
        try:
            rest, payloads = _cut_partitions(memoryview(request))
        except (IndexError, ValueError):
            pass  # the generated code says what is wrong with it
        else:
            return ProduceCall(pb.ProduceRequest.FromString(rest), payloads, size)
    return ProduceCall(pb.ProduceRequest.FromString(request), (), size)


_PARTITIONS = tag_of(pb.ProduceRequest, "partitions")
_ARROW = tag_of(pb.PartitionProduceData, "arrow")
_RECORDS = tag_of(pb.PartitionProduceData, "records")


def _cut_partitions(request: memoryview) -> tuple[bytes, list[Payload | None]]:
    rest: list[bytes | memoryview] = []
    payloads: list[Payload | None] = []
    for tag, field, value in fields_of(request):
        if tag == _PARTITIONS:
            partition, payload = _cut_payload(value)
            rest += encode_field(_PARTITIONS, [partition])
            # A view keeps the whole request alive for as long as its records stay in memory.
            is_most_of_it = payload is not None and len(payload) * 2 >= len(request)
            payloads.append(payload if payload is None or is_most_of_it else bytes(payload))
        else:
            rest.append(field)
    return b"".join(rest), payloads


def _cut_payload(partition: memoryview) -> tuple[bytes | memoryview, memoryview | None]:
    rest: list[memoryview] = []
    payload: memoryview | None = None
    for tag, field, value in fields_of(partition):
        if tag == _RECORDS or (tag == _ARROW and payload is not None):
            return partition, None  # the last one counts: the generated code knows
        if tag == _ARROW:
            payload = value
        else:
            rest.append(field)
    return b"".join(rest), payload
