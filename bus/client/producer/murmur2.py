"""murmur2 as Kafka's Java client computes it, for one key and for a whole column of keys at once.

Guards one promise: a key goes to the partition that Kafka's default partitioner would choose, so that records written
by either client with one key stay together. The column form gives, row by row, what the single form gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_VECTOR_ROWS_MIN = 16  # below this many keys still unfinished, numpy's overhead costs more than plain Python
_DICTIONARY_SAMPLE = 512

Hashes = npt.NDArray[np.uint32]


def murmur2(data: bytes) -> int:
    """The hash as Java's signed 32-bit integer."""
    unsigned = _murmur2_unsigned(data)
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's toPositive(murmur2(key)) % partition_count."""
    return (_murmur2_unsigned(key) & 0x7FFFFFFF) % partition_count


def _murmur2_unsigned(data: bytes) -> int:
    words = len(data) // 4
    return _finish(_mix_words((_SEED ^ len(data)) & _MASK, data, 0, words), data[words * 4 :])


def _mix_words(state: int, data: bytes, start: int, end: int) -> int:
    """Words `start` to `end` (of four bytes) mixed into `state`."""
    for position in range(start * 4, end * 4, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    return state


def _finish(state: int, tail: bytes) -> int:
    if tail:
        state = (state ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _MASK
    state = (state ^ (state >> 13)) * _MULTIPLIER & _MASK
    return state ^ (state >> 15)


def partitions_of_keys(keys: pa.Array, partition_count: int) -> npt.NDArray[np.int64]:
    """One partition for each of `keys`, a column of type binary; that of a null means nothing."""
    return partitions_by_hash(hashes_of_keys(keys), partition_count)


def partitions_by_hash(hashes: Hashes, partition_count: int) -> npt.NDArray[np.int64]:
    positive: npt.NDArray[np.int64] = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return positive % partition_count


def hashes_of_keys(keys: pa.Array) -> Hashes:
    """As `murmur2_column`. Keys that repeat are hashed once; whether they do is judged by the first few hundred."""
    if keys.null_count == len(keys):
        return np.zeros(len(keys), np.uint32)
    sample = keys[:_DICTIONARY_SAMPLE]
    if pc.count_distinct(sample).as_py() * 2 > len(sample):
        return murmur2_column(keys)
    encoded = keys.dictionary_encode()
    distinct: Hashes = murmur2_column(encoded.dictionary)[encoded.indices.fill_null(0).to_numpy()]
    return distinct


def murmur2_column(keys: pa.Array) -> Hashes:
    """The unsigned hash of each of `keys`, a column of type binary; that of a null means nothing.

    Works on one word of all keys at a time, the longest keys first, so that the rows still to do are a prefix.
    """
    count = len(keys)
    if count == 0:
        return np.zeros(0, np.uint32)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    data = _padded(keys.buffers()[2], int(offsets[-1]))
    lengths = np.diff(offsets)
    order: Any = np.argsort(-lengths, kind="stable") if lengths.min() != lengths.max() else slice(None)
    starts, lengths = offsets[:-1][order], lengths[order]
    words = lengths >> 2

    state = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    # An unaligned view: the four bytes that begin at each byte of the data.
    words_at: Hashes = np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    unfinished = count - np.searchsorted(words[::-1], np.arange(int(words[0])), side="right")
    for step, active in enumerate(unfinished.tolist()):
        if active < _VECTOR_ROWS_MIN:
            _mix_rest(state, data, starts, words, step, active)
            break
        word = words_at[starts[:active] + step * 4] * np.uint32(_MULTIPLIER)
        word = (word ^ (word >> np.uint32(24))) * np.uint32(_MULTIPLIER)
        state[:active] = state[:active] * np.uint32(_MULTIPLIER) ^ word

    tail_bits = (lengths & 3) * 8
    tails = words_at[starts + words * 4] & ((np.int64(1) << tail_bits) - 1).astype(np.uint32)
    with_tail = (state ^ tails) * np.uint32(_MULTIPLIER)
    state = np.where(tail_bits > 0, with_tail, state)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(_MULTIPLIER)
    state = state ^ (state >> np.uint32(15))
    hashes = np.empty(count, np.uint32)
    hashes[order] = state
    return hashes


def _padded(buffer: pa.Buffer | None, size: int) -> npt.NDArray[np.uint8]:
    """The first `size` bytes with at least four more behind them, copied only if the buffer ends too early."""
    held = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(0, np.uint8)
    if len(held) >= size + 4:
        return held[: size + 4]
    return np.concatenate([held[:size], np.zeros(4, np.uint8)])


def _mix_rest(state: Hashes, data: Any, starts: Any, words: Any, step: int, active: int) -> None:
    for row in range(active):
        start, end = int(starts[row]), int(words[row])
        key = data[start : start + end * 4].tobytes()
        state[row] = _mix_words(int(state[row]), key, step, end)
