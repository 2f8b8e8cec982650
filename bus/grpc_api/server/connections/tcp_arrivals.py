"""Arrivals by a TCP connection that something else reads: how much the system has counted, and a bound on it.

The bound is a filter (classic BPF, SO_ATTACH_FILTER) that the system runs on each segment: it lets through what begins
within the first bytes of the connection and drops the rest, which the sender sends again until the bound is lifted. So
it holds, to a segment of 64 KiB at most, however late any thread of ours is. Needs no privilege; Linux 4.3 or later.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

IS_AVAILABLE = sys.platform == "linux"

_BYTES_RECEIVED = slice(128, 136)  # tcpi_bytes_received of struct tcp_info
_TCP_SAVE_SYN, _TCP_SAVED_SYN = 27, 28
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_SYN_BYTES_MAX = 256
_DISCARDED_BYTES = 65_536

# Of classic BPF: load a word, subtract, jump if it is at least so much, return how much of the segment is taken.
_LOAD_WORD, _SUBTRACT, _JUMP_FROM, _RETURN = 0x20, 0x14, 0x35, 0x06
_WHOLE = 0xFFFF_FFFF
_BEFORE = 0xFFFF_0000  # from here on an offset is negative: a repeated SYN, or a keepalive's last byte
_SEQUENCE_AT = 4  # in the header of TCP, which a segment begins with


def save_first_sequences(listening: socket.socket) -> None:
    """Have the system keep what `first_sequence` asks for, of each connection of this listener."""
    listening.setsockopt(socket.IPPROTO_TCP, _TCP_SAVE_SYN, 1)


def first_sequence(connection: socket.socket) -> int | None:
    """The sequence number of the peer's first byte; None if the system has not kept it. It tells it once."""
    syn = connection.getsockopt(socket.IPPROTO_TCP, _TCP_SAVED_SYN, _SYN_BYTES_MAX)
    if not syn:
        return None
    header = (syn[0] & 15) * 4 if syn[0] >> 4 == 4 else 40
    (sequence,) = struct.unpack_from(">I", syn, header + _SEQUENCE_AT)
    return (int(sequence) + 1) & 0xFFFF_FFFF


def bound_arrivals(connection: socket.socket, first: int, bytes_max: int) -> None:
    """Let no segment arrive that begins behind the first `bytes_max` bytes, until this is called again or the bound is
    lifted. `first`: the sequence of the first byte."""
    program = _program(first, bytes_max)
    instructions = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


def lift_bound(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _program(first: int, bytes_max: int) -> bytes:
    """A filter that takes a segment whole or not at all: a part of it would not have its checksum."""
    steps = (
        (_LOAD_WORD, 0, 0, _SEQUENCE_AT),
        (_SUBTRACT, 0, 0, first),  # where the segment begins
        (_JUMP_FROM, 0, 1, bytes_max),
        (_JUMP_FROM, 0, 1, _BEFORE),
        (_RETURN, 0, 0, _WHOLE),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def bytes_received(connection: socket.socket) -> int:
    """The bytes that have arrived since it began, whoever has read them."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.stop)
    return int.from_bytes(info[_BYTES_RECEIVED], sys.byteorder)


def discard_and_shut(connection: socket.socket) -> None:
    """End it and throw away what was not read, which its reader would still be given. Raises `OSError`."""
    connection.shutdown(socket.SHUT_RDWR)
    while connection.recv(_DISCARDED_BYTES, socket.MSG_DONTWAIT | socket.MSG_TRUNC):
        continue
