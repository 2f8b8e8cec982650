"""Partitioning of records and batches, and the splitting of a batch with keys.

Guards two promises: equal keys of one topic go to one partition, in their order, as long as the number of partitions
stays; and that is the partition that Kafka's default partitioner would choose (murmur2, as Kafka's Java client computes
it), so that records written by either client with one key stay together. Works on whole columns, which give, row by
row, what a single key gives; the records of one partition keep the order that they had in the batch. Chance comes in as
an argument.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bus.client.config.clients import ProducerConfig
from bus.client.connection.metadata_cache import TopicInfo
from bus.client.interceptors import asks_for
from bus.client.producer.queue import PartitionQueue
from bus.errors import BusError, ErrorCode, show_range


class StickyPartitioner:
    """The partition of one topic's records that nothing else decides: one for `batch_size` bytes, then another, drawn
    at random (KIP-794).

    `random()` gives numbers from 0 up to, but not including, 1. Not safe between threads.
    """

    __slots__ = ("_batch_size", "_bytes", "_candidates", "_current", "_partition_count", "_random", "_weights")

    def __init__(self, batch_size: int, random: Callable[[], float]) -> None:
        self._batch_size = max(1, batch_size)
        self._random = random
        self._current = -1  # none yet
        self._bytes = 0
        self._candidates: list[int] = []
        self._weights: list[int] = []  # running sum of the candidates' shares; empty: all are alike
        self._partition_count = 0  # that the load was told of

    @property
    def is_switching(self) -> bool:
        """The next `partition` draws: now is the time for `update_load`."""
        return self._current < 0 or self._bytes >= self._batch_size

    def partition(self, partition_count: int) -> int:
        if self.is_switching or self._current >= partition_count:
            self._current, self._bytes = self._draw(partition_count), 0
        return self._current

    def update(self, size_bytes: int) -> None:
        """So much went to the present partition."""
        self._bytes += size_bytes

    def update_load(self, queue_sizes: Sequence[int], available: Sequence[bool] | None = None) -> None:
        """Set the weights from the queues: a longer queue is drawn less often, the longest one, of `n`, once where an
        empty one is drawn `n + 1` times.

        Partitions that are not `available` are left out, unless that leaves none.
        """
        everyone = range(len(queue_sizes))
        candidates = [p for p in everyone if available is None or available[p]] or list(everyone)
        sizes = [queue_sizes[partition] for partition in candidates]
        most = max(sizes, default=0)
        is_even = most == min(sizes, default=0)
        self._partition_count = len(queue_sizes)
        self._candidates = candidates
        self._weights = [] if is_even else list(itertools.accumulate(most + 1 - size for size in sizes))

    def _draw(self, partition_count: int) -> int:
        if partition_count != self._partition_count:  # it was not told, or the topic has grown since
            return int(self._random() * partition_count)
        if not self._weights:
            return self._candidates[int(self._random() * len(self._candidates))]
        drawn = int(self._random() * self._weights[-1])
        return self._candidates[bisect.bisect_right(self._weights, drawn)]


class RecordPartitioner(Protocol):
    """Decides for each record that names no partition. Safe to share between threads.

    `available`: the partitions that serve now, in order; None if that is not known, or not `wants_available`.
    `key_object` and `value_object`: what the program gave, before it was serialized.
    """

    @property
    def wants_available(self) -> bool: ...

    def partition(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition_count: int,
        available: Sequence[int] | None = None,
        *,
        key_object: Any = None,
        value_object: Any = None,
    ) -> int: ...


class ServingPartitioner:
    """A partition that serves now, whatever the record; one of all while none does. `place_of`: which one of a topic's,
    of so many."""

    wants_available = True

    def __init__(self, place_of: Callable[[str, int], int]) -> None:
        self._place_of = place_of

    def partition(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition_count: int,
        available: Sequence[int] | None = None,
        *,
        key_object: Any = None,
        value_object: Any = None,
    ) -> int:
        candidates = available or range(partition_count)
        return candidates[self._place_of(topic, len(candidates))]


def round_robin_partitioner() -> ServingPartitioner:
    """Make one that takes the partitions of each topic in turn."""
    turns: dict[str, itertools.count[int]] = {}
    return ServingPartitioner(lambda topic, count: next(turns.setdefault(topic, itertools.count())) % count)


def random_partitioner(draw: Callable[[], float] = random.random) -> ServingPartitioner:
    """Make one that takes any partition. `draw`: 0 <= drawn < 1."""
    return ServingPartitioner(lambda _, count: int(draw() * count))


class UserPartitioner:
    """A user's function of (topic, key, value, partition_count), key and value as bytes, or an object with such a
    method `partition`. One with a parameter `available` gets the partitions that serve now; one with `key_object` or
    `value_object`, what the program gave.

    What it raises comes out of `partition`, as does `ValueError` for an answer that is no partition of the topic.
    """

    def __init__(self, chooser: Any) -> None:
        self._choose = getattr(chooser, "partition", chooser)
        self.wants_available = asks_for(self._choose, "available")
        self._objects = [name for name in ("key_object", "value_object") if asks_for(self._choose, name)]

    def partition(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition_count: int,
        available: Sequence[int] | None = None,
        *,
        key_object: Any = None,
        value_object: Any = None,
    ) -> int:
        more: dict[str, Any] = {"available": available} if self.wants_available else {}
        objects = {"key_object": key_object, "value_object": value_object}
        more |= {name: objects[name] for name in self._objects}
        chosen = self._choose(topic, key, value, partition_count, **more)
        try:
            partition = -1 if isinstance(chosen, bool) else operator.index(chosen)
        except TypeError:
            partition = -1
        if not 0 <= partition < partition_count:
            raise ValueError(
                f"expected the partitioner to give a partition of {topic!r} {show_range(0, partition_count - 1)}, "
                f"found {chosen!r}"
            )
        return partition


def record_partitioner_of(partitioner: Any) -> RecordPartitioner | None:
    """Return the partitioner that the config `partitioner` names; None: keys decide, and records without a key are
    sticky."""
    if partitioner is None:
        return None
    if isinstance(partitioner, str):
        return random_partitioner() if partitioner == "random" else round_robin_partitioner()
    return UserPartitioner(partitioner)


def split_by_key(
    batch: pa.RecordBatch, partition_count: int, choose: Callable[[], int]
) -> list[tuple[int, pa.RecordBatch]]:
    """`batch` by partition, in the order of their numbers. Rows whose key is null go together to the partition that
    `choose` gives, which is asked at most once.

    Raises `BusError` INVALID_RECORD if the keys are no bytes.
    """
    keys = batch.column("key") if "key" in batch.schema.names else None
    if keys is None or keys.null_count == len(keys):
        return [(choose(), batch)]
    if partition_count == 1:
        return [(0, batch)]
    keys = _as_bytes(keys)
    partitions = partitions_of_keys(keys, partition_count)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = choose()
    return split_by_partition(batch, partitions, partition_count)


def _as_bytes(keys: pa.Array) -> pa.Array:
    if pa.types.is_binary(keys.type):
        return keys
    try:
        return keys.cast(pa.binary())
    except (pa.ArrowException, ValueError):
        found = keys.type
    raise BusError(ErrorCode.INVALID_RECORD, f"expected the column key as binary or text, found {found}")


def split_by_partition(
    batch: pa.RecordBatch, partitions: Any, partition_count: int
) -> list[tuple[int, pa.RecordBatch]]:
    """One stable sort and one copy; the parts are slices of it. A part for each partition that has a row.

    Nothing is copied where the rows of each partition lie together.
    """
    counts = np.bincount(partitions, minlength=partition_count)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch)]
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    if len(starts) == len(present):
        starts = starts[np.argsort(partitions[starts])]
        return [(int(p), batch.slice(int(start), int(counts[p]))) for p, start in zip(present, starts, strict=True)]
    # 16-bit numbers are sorted by radix, in linear time.
    narrow = partitions.astype(np.uint16) if partition_count <= 1 << 16 else partitions
    in_order = batch.take(pa.array(np.argsort(narrow, kind="stable")))
    starts = np.cumsum(counts) - counts
    return [(int(p), in_order.slice(int(starts[p]), int(counts[p]))) for p in present]


_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_VECTOR_ROWS_MIN = 16  # below this many keys still unfinished, numpy's overhead costs more than plain Python
_DICTIONARY_SAMPLE = 512

Hashes = npt.NDArray[np.uint32]


def _mix_words(state: int, data: bytes, start: int, end: int) -> int:
    """Words `start` to `end` (of four bytes) mixed into `state`."""
    for position in range(start * 4, end * 4, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    return state


def partitions_of_keys(keys: pa.Array, partition_count: int) -> npt.NDArray[np.int64]:
    """One partition for each of `keys`, a column of type binary; that of a null means nothing."""
    return partitions_by_hash(hashes_of_keys(keys), partition_count)


def partitions_by_hash(hashes: Hashes, partition_count: int) -> npt.NDArray[np.int64]:
    positive: npt.NDArray[np.int64] = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return positive % partition_count


def hashes_of_keys(keys: pa.Array) -> Hashes:
    """Hash the keys like `murmur2_column`. Repeated keys are hashed once; the first few hundred decide whether keys
    repeat."""
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


class _Topic:
    """The sticky partition of a topic, and the bytes given to each partition so far, where a partition with a longer
    queue counts each byte more than once."""

    __slots__ = ("costs", "given", "sticky")

    def __init__(self, batch_size: int, partition_count: int) -> None:
        self.sticky = StickyPartitioner(batch_size, random.random)
        self.given = [0.0] * partition_count
        self.costs = [1.0] * partition_count  # the cost of a byte at the last draw

    def least_given(self, are_available: Sequence[bool], batch_bytes: int) -> list[bool]:
        """Return which partitions may be drawn: those available that are at most a batch ahead of another one. An
        unavailable partition falls no further behind, so that it need not catch up on everything when it returns."""
        least = min(given for given, is_available in zip(self.given, are_available, strict=True) if is_available)
        for partition, is_available in enumerate(are_available):
            if not is_available:
                self.given[partition] = max(self.given[partition], least)
        return [
            is_available and given < least + batch_bytes
            for given, is_available in zip(self.given, are_available, strict=True)
        ]


class PartitionChoice:
    """The choice of a partition for records that neither the caller nor a key decides; keeps the state for the
    functions above. Single records have one sticky partition a topic, for about batch.size bytes. A batch may grow far
    beyond batch.size while the broker is busy, so bytes are counted: partitions get the same share of the bytes, and
    one with a longer queue a smaller share, as KIP-794 weighs them. A partition that does not serve (its leader is
    unknown, or has accepted nothing for partitioner.availability.timeout.ms) is left out. Batches of a user go to the
    available partitions in turn.

    `leader_of(info, partition)` is None while it is not known; `queue_of(topic, partition)` is None if nothing was ever
    sent there."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        leader_of: Callable[[TopicInfo, int], str | None],
        queue_of: Callable[[str, int], PartitionQueue | None],
    ) -> None:
        self._batch_size = config.batch_size
        self._ignores_keys = config.partitioner_ignore_keys
        self._is_adaptive = config.partitioner_adaptive_partitioning_enable
        self._availability_timeout_ms = config.partitioner_availability_timeout_ms
        self._leader_of = leader_of
        self._queue_of = queue_of
        self._topics: dict[str, _Topic] = {}
        self._turns = round_robin_partitioner()

    def choose(self, topic: str, info: TopicInfo, size_bytes: int, now_ms: float) -> int:
        """Choose the partition for `size_bytes` of single records that stay together."""
        count = len(info.partitions)
        found = self._topics.get(topic)
        if found is None or len(found.given) != count:
            found = self._topics[topic] = _Topic(self._batch_size, count)
        if found.sticky.is_switching and count > 1:
            self._weigh(found, topic, info, now_ms)
        partition = found.sticky.partition(count)
        found.sticky.update(size_bytes)
        found.given[partition] += size_bytes * found.costs[partition]
        return partition

    def split(self, topic: str, batch: pa.RecordBatch, info: TopicInfo) -> list[tuple[int, pa.RecordBatch]]:
        """A batch by its keys; rows without one go together to one partition, the next batch's to the next one."""
        count = len(info.partitions)

        def choose() -> int:
            available = [partition for partition in range(count) if self._serves(info, partition)]
            return self._turns.partition(topic, None, None, count, available)

        return [(choose(), batch)] if self._ignores_keys else split_by_key(batch, count, choose)

    def _serves(self, info: TopicInfo, partition: int) -> bool:
        """True if the partition is known to have a leader, which has not said that the partition is stopped."""
        return self._leader_of(info, partition) is not None and not info.partitions[partition].error_code

    def _weigh(self, found: _Topic, topic: str, info: TopicInfo, now_ms: float) -> None:
        """Before a draw: who takes part in it, and what a byte costs there (KIP-794: of `n` batches in the longest
        queue, that partition gets one share where an empty one gets `n + 1`)."""
        batch_bytes = max(1, self._batch_size)
        count = len(info.partitions)
        are_available = [self._serves(info, partition) for partition in range(count)]
        if self._is_adaptive:
            queues = [self._queue_of(topic, partition) for partition in range(count)]
            lengths = [0 if queue is None else queue.unsettled_bytes // batch_bytes for queue in queues]
            most = max(lengths) + 1
            found.costs = [most / (most - length) for length in lengths]
            for partition, queue in enumerate(queues):
                are_available[partition] &= queue is None or self._takes(queue, now_ms)
        if not any(are_available):
            are_available = [True] * count
        found.sticky.update_load([0] * count, found.least_given(are_available, batch_bytes))

    def _takes(self, queue: PartitionQueue, now_ms: float) -> bool:
        if self._availability_timeout_ms <= 0 or not queue.in_flight:
            return True
        return now_ms - queue.answered_at_ms < self._availability_timeout_ms
