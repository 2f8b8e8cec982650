"""Kafka's hash of a key, byte by byte as Austin Appleby describes it: a second opinion on the hash of whole columns."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The hash as Java's signed 32-bit integer."""
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    state ^= state >> 15
    return state - (1 << 32) if state >= 1 << 31 else state


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's toPositive(murmur2(key)) % partition_count."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
