"""Which partition each row goes to, as in Kafka: the one that the row names, else its key's.

Guards one promise: a task that runs again puts the same rows where they went before, so nothing is drawn by chance.
Rows with neither go by their position in the task or, where rows come in any order, by their value. Works on whole
columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bus.client.producer.partitioning import hashes_of_keys, partitions_by_hash
from bus.errors import show_range
from bus.model import TopicPartition
from bus.spark.sink.columns import RowRefused, Rows

Hashes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]
# So many rows in a row stay together: as many commits as there are partitions cost more than one.
_RUN_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Placed:
    """`targets[i]` says, by its number, to which partition row i goes."""

    targets: Numbers
    key_hashes: Hashes | None  # None: the query has no keys


class Placement:
    """`partition_count(topic)` raises for a topic that does not exist. `first_turn` is where rows with neither key nor
    partition begin; with `by_value` they go by their value."""

    def __init__(
        self, topic: str | None, partition_count: Callable[[str], int], *, first_turn: int, by_value: bool
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._first_turn = first_turn
        self._by_value = by_value
        self._position = 0
        self._starts: dict[str, tuple[int, int]] = {}  # topic -> its first target, and how many
        self.partitions: list[TopicPartition] = []  # by the number of the target

    def place(self, rows: Rows) -> Placed:
        """Raises `RowRefused`, or what `partition_count` raises."""
        count = rows.records.num_rows
        keys = rows.keys
        hashes = None if keys is None else hashes_of_keys(keys)
        targets: Numbers = np.empty(count, np.int64)
        if rows.topics is None:
            assert self._topic is not None, "rows name no topic, and the options neither"
            targets[:] = self._of_topic(self._topic, rows, hashes, slice(None))
        else:
            topics = rows.topics.dictionary_encode()
            of_row = topics.indices.to_numpy()
            for number, topic in enumerate(topics.dictionary.to_pylist()):
                where = np.flatnonzero(of_row == number)
                targets[where] = self._of_topic(topic, rows, hashes, where)
        self._position += count
        return Placed(targets, hashes)

    def _of_topic(self, topic: str, rows: Rows, hashes: Hashes | None, where: Any) -> Numbers:
        """The targets of the rows `where`, all of one topic."""
        first, count = self._targets_of(topic)
        numbers: Numbers = self._without_key(rows, count)[where]
        if hashes is not None and rows.keys is not None:
            by_key = partitions_by_hash(hashes[where], count)
            numbers = np.where(_is_valid(rows.keys)[where], by_key, numbers)
        if rows.partitions is not None:
            named = rows.partitions.fill_null(-1).to_numpy()[where]
            is_named = _is_valid(rows.partitions)[where]
            _check_partitions(topic, named[is_named], count)
            numbers = np.where(is_named, named, numbers)
        return numbers + first

    def _targets_of(self, topic: str) -> tuple[int, int]:
        if topic not in self._starts:
            count = self._partition_count(topic)
            self._starts[topic] = (len(self.partitions), count)
            self.partitions += [TopicPartition(topic, number) for number in range(count)]
        return self._starts[topic]

    def _without_key(self, rows: Rows, count: int) -> Numbers:
        if self._by_value:
            return partitions_by_hash(hashes_of(rows.records.column("value")), count)
        numbers: Numbers = np.arange(self._position, self._position + rows.records.num_rows, dtype=np.int64)
        return (numbers // _RUN_ROWS + self._first_turn) % count


def hashes_of(column: pa.Array) -> Hashes:
    """murmur2 of each, 0 of a null."""
    hashes: Hashes = hashes_of_keys(column)
    return hashes if not column.null_count else np.where(_is_valid(column), hashes, np.uint32(0))


def _is_valid(column: pa.Array) -> Any:
    return pc.is_valid(column).to_numpy(zero_copy_only=False)


def _check_partitions(topic: str, named: Any, count: int) -> None:
    wrong = named[(named < 0) | (named >= count)]
    if len(wrong):
        raise RowRefused(f"expected a partition of {topic!r} {show_range(0, int(count) - 1)}, found {int(wrong[0])}")
