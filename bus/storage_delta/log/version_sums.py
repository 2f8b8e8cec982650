"""The checksum of a version file, in the `commitInfo` of the versions that the bus writes.

Guards one promise: a version that has a checksum is what was written, digit by digit. JSON that was changed can be
sound JSON with another offset, sequence or size, and most fields contradict no other. Any Delta reader passes over the
field; versions of other engines and of earlier buses have none, and count as they are. Does no I/O.
"""

from __future__ import annotations

import zlib

_FIELD = b'"fileCrc32":"'
_NOT_COUNTED = b"00000000"  # the sum is of the file with these digits in the place of its own
_BEFORE = b'"actionCount"'


def add_sum(data: bytes) -> bytes:
    """A version file whose `commitInfo`, its first line, has an `actionCount`."""
    at = data.index(_BEFORE)
    head, rest = data[:at] + _FIELD, b'",' + data[at:]
    return head + _sum_around(head, rest) + rest


def check_sum(data: bytes) -> None:
    """Raises `ValueError` if the version file has a checksum and is not what was written."""
    at = data.find(_FIELD, 0, data.find(b"\n") + 1)
    if at < 0:
        return
    begin, end = at + len(_FIELD), at + len(_FIELD) + len(_NOT_COUNTED)
    said, found = data[begin:end], _sum_around(data[:begin], data[end:])
    if said != found:
        expected = said.decode("ascii", errors="replace")
        raise ValueError(
            f"expected checksum {expected}, found {found.decode()}: the file has changed since it was written"
        )


def _sum_around(head: bytes, rest: bytes) -> bytes:
    """The newline at the end carries nothing, so it does not count."""
    return b"%08x" % zlib.crc32(rest.rstrip(b"\n"), zlib.crc32(head + _NOT_COUNTED))
