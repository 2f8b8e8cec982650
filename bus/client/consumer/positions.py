"""Positions of the assigned partitions, and look-ups of their leaders.

Guards the order in which a position comes about: what a seek asked for, else what the group has committed, else
auto.offset.reset; and it is looked up once, when it is needed. A poll begins the look-ups and never waits for one
longer than its caller wants; a topic or a broker that is not there yet is waited for, and costs no other partition its
turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bus.client.config.clients import ConsumerConfig
from bus.client.config.values import BY_DURATION, duration_ms
from bus.client.connection.cluster import Cluster
from bus.client.connection.leader_calls import list_offsets, list_offsets_once
from bus.client.connection.retrying import Lookup, monotonic_ms
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.consumer.fetcher import Fetcher
from bus.client.values import OffsetAndMetadata
from bus.descriptions import ListedOffset
from bus.errors import BusError, ErrorCode, show_range
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

_MISSING_INTERVAL_MS = 600_000  # between two warnings of one partition that does not exist


class CommittedOffsets(Protocol):
    """The look-up of a group's committed offsets."""

    def find_committed(
        self, partitions: Iterable[TopicPartition], deadline_ms: float, *, require_stable: bool
    ) -> Mapping[TopicPartition, OffsetAndMetadata | BusError]: ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A partition that needs a position, as it was when the look-up began."""

    partition: AssignedPartition
    moves: int


class Positions:
    """`group` None: no group has committed offsets. `is_shared`: a group says what is assigned, and takes away what was
    deleted; a user who assigned it is told by an error."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        fetcher: Fetcher,
        group: CommittedOffsets | None,
        *,
        is_shared: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._fetcher = fetcher
        self._group = group
        self._is_shared = is_shared
        self._lookup: Lookup[None] = Lookup("bus-positions", fetcher.changed)
        self._missing_due_ms: dict[TopicPartition, float] = {}  # when the log is to say again that they do not exist

    def is_due(self, now_ms: float) -> bool:
        """`settle` has something to do."""
        if self._lookup.is_under_way:
            return False
        return self._lookup.has_answer or any(
            ((partition.position is None and not partition.is_paused) or partition.is_leader_doubtful)
            and now_ms >= partition.retry_at_ms
            for partition in self._fetcher.assigned.values()
        )

    def settle(self, now_ms: float) -> None:
        """Begin to look for what is missing and due, unless a look-up is under way. Raises `BusError` for what the last
        one found that does not mend itself."""
        if self._lookup.is_under_way:
            return
        if self._lookup.has_answer:
            self._lookup.take()
        due = [partition for partition in self._fetcher.assigned.values() if now_ms >= partition.retry_at_ms]
        doubtful = [
            partition for partition in due if partition.is_leader_doubtful or self._is_leader_unknown(partition)
        ]
        unset = [partition for partition in due if partition.position is None and not partition.is_paused]
        if doubtful or unset:
            self._lookup.start(partial(self._look_up, doubtful, unset))

    def _look_up(self, doubtful: list[AssignedPartition], unset: list[AssignedPartition]) -> None:
        try:
            lost = self._find_leaders(doubtful)
            self._find_some([partition for partition in unset if id(partition) not in lost])
        except BusError as error:
            if self._is_assigned([*doubtful, *unset]) and not self._cluster.may_retry(error):
                raise
            self._put_off([*doubtful, *unset], error)
        with self._fetcher.lock:
            self._fetcher.fetch(monotonic_ms())

    def _is_assigned(self, partitions: list[AssignedPartition]) -> bool:
        """Any of them still."""
        assigned = self._fetcher.assigned
        return any(assigned.get(partition.partition) is partition for partition in partitions)

    def _put_off(self, partitions: list[AssignedPartition], error: BusError) -> None:
        is_first = all(partition.failures == 0 for partition in partitions)
        level = logging.WARNING if is_first else logging.DEBUG
        logger.log(level, "finding leaders and positions is tried again: %s", error)
        with self._fetcher.lock:
            for partition in {id(partition): partition for partition in partitions}.values():
                self._fetcher.put_off(partition, monotonic_ms())

    # ------------------------------------------------------------ leaders

    def _is_leader_unknown(self, partition: AssignedPartition) -> bool:
        info = self._cluster.metadata.topic(partition.partition.topic)
        if info is None or not partition.topic_id or self._cluster.metadata.is_stale(info):
            return True
        # Another topic's look-up may have brought metadata of this one.
        return partition.topic_id != info.topic_id

    def _find_leaders(self, partitions: list[AssignedPartition]) -> set[int]:
        """The id() of those that do not exist: they are looked for again later. Raises `BusError`."""
        if not partitions:
            return set()
        topics = {partition.partition.topic for partition in partitions}
        # A partition that is missing may have been added since; the metadata would stay fresh for minutes.
        doubted = [p for p in partitions if p.is_leader_doubtful or self._is_missing(p.partition)]
        self._cluster.metadata.forget({partition.partition.topic for partition in doubted})
        missing = self._refresh([topic for topic in topics if self._is_stale(topic)])
        with self._fetcher.lock:
            for partition in list(self._fetcher.assigned.values()):
                if partition.partition.topic in topics - missing:
                    self._note_leader(partition)
            lost = [partition for partition in partitions if self._is_missing(partition.partition)]
            for partition in lost:
                self._note_missing(partition)
            for partition in partitions:
                if partition not in lost:
                    self._missing_due_ms.pop(partition.partition, None)
        deleted = [partition for partition in lost if partition.topic_id]
        if deleted and not self._is_shared():
            raise BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{deleted[0].partition} was deleted")
        return {id(partition) for partition in lost}

    def _is_stale(self, topic: str) -> bool:
        info = self._cluster.metadata.topic(topic)
        return info is None or self._cluster.metadata.is_stale(info)

    def _is_missing(self, key: TopicPartition) -> bool:
        info = self._cluster.metadata.topic(key.topic)
        return info is None or key.partition >= len(info.partitions)

    def _note_missing(self, partition: AssignedPartition) -> None:
        now_ms = monotonic_ms()
        self._fetcher.put_off(partition, now_ms)
        key = partition.partition
        if now_ms >= self._missing_due_ms.get(key, now_ms):
            self._missing_due_ms[key] = now_ms + _MISSING_INTERVAL_MS
            logger.warning("%s is waited for: UNKNOWN_TOPIC_OR_PARTITION: %s", key, self._why_missing(key))

    def _why_missing(self, key: TopicPartition) -> str:
        info = self._cluster.metadata.topic(key.topic)
        if info is None:
            return "the topic does not exist yet"
        return f"expected a partition {show_range(0, len(info.partitions) - 1)}, found {key.partition}"

    def _refresh(self, topics: list[str]) -> set[str]:
        """Those that do not exist. Raises `BusError` for all else."""
        if topics:
            try:
                self._cluster.refresh(topics)
            except BusError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return {topic for topic in topics if self._cluster.metadata.topic(topic) is None}

    def _note_leader(self, partition: AssignedPartition) -> None:
        info = self._cluster.metadata.topic(partition.partition.topic)
        if info is None or partition.partition.partition >= len(info.partitions):
            return
        if partition.topic_id not in ("", info.topic_id):
            logger.warning("%s was deleted and created again: resetting the position", partition.partition)
            partition.unset_position(None)
            partition.forget_log()
        partition.topic_id = info.topic_id
        partition.leader_epoch = info.partitions[partition.partition.partition].leader_epoch
        address = self._cluster.metadata.leader_address(info, partition.partition.partition)
        partition.is_leader_doubtful = address is None
        if address is None:
            self._fetcher.put_off(partition, monotonic_ms())

    # ------------------------------------------------------------ positions

    def find(self, keys: list[TopicPartition], *, deadline_ms: float) -> None:
        """Give each of these a position, in this thread. Raises `BusError`."""
        wanted = self._wanted([p for key in keys if (p := self._fetcher.assigned.get(key)) is not None])

        reasons: list[BusError] = []

        def take_committed() -> None:
            for reason in self._take_committed(wanted, deadline_ms).values():
                reasons.append(reason)
                raise reason

        try:
            self._cluster.retry(take_committed, deadline_ms=deadline_ms)
        except BusError as error:
            if error.code is ErrorCode.REQUEST_TIMED_OUT and reasons:  # they say why the time is up
                raise reasons[-1] from error
            raise
        timestamps = {key: self._reset_timestamp(each.partition) for key, each in wanted.items()}
        behind_all = self._take(wanted, list_offsets(self._cluster, timestamps, deadline_ms=deadline_ms))
        if behind_all:
            self._take(wanted, list_offsets(self._cluster, behind_all, deadline_ms=deadline_ms))

    def _find_some(self, partitions: list[AssignedPartition]) -> None:
        """Give a position to each of these that can have one now; the others are put off."""
        deadline_ms = monotonic_ms() + self._config.request_timeout_ms
        wanted = self._wanted([partition for partition in partitions if partition.position is None])
        unstable = self._take_committed(wanted, deadline_ms)
        for key, reason in unstable.items():
            self._put_off([wanted.pop(key).partition], reason)
        refused = {key: each for key, each in wanted.items() if self._reset_of(each.partition) == "none"}
        timestamps = {key: self._reset_timestamp(each.partition) for key, each in wanted.items() if key not in refused}
        listed, failure = list_offsets_once(self._cluster, timestamps, deadline_ms=deadline_ms)
        behind_all = self._take(wanted, listed)
        if behind_all:
            listed, error = list_offsets_once(self._cluster, behind_all, deadline_ms=deadline_ms)
            self._take(wanted, listed)
            failure = failure or error
        if failure is not None:
            if not self._cluster.may_retry(failure):
                raise failure
            self._put_off([each.partition for key, each in wanted.items() if key not in refused], failure)
        for each in refused.values():
            self._reset_timestamp(each.partition)

    def _wanted(self, partitions: list[AssignedPartition]) -> dict[TopicPartition, _Wanted]:
        with self._fetcher.lock:
            return {partition.partition: _Wanted(partition, partition.moves) for partition in partitions}

    def _take_committed(
        self, wanted: dict[TopicPartition, _Wanted], deadline_ms: float
    ) -> dict[TopicPartition, BusError]:
        """Go where the group has committed; what has a position leaves `wanted`. Why others cannot have one for now: a
        transaction may yet commit an offset. Whatever isolation_level is, for else their records would be processed
        twice (KIP-447)."""
        committed_first = [key for key, each in wanted.items() if each.partition.has_committed]
        unstable: dict[TopicPartition, BusError] = {}
        if committed_first and self._group is not None:
            for key, found in self._group.find_committed(committed_first, deadline_ms, require_stable=True).items():
                if isinstance(found, BusError):
                    unstable[key] = found
                else:
                    self._go_to(wanted.pop(key), found.offset)
        return unstable

    def _take(
        self, wanted: dict[TopicPartition, _Wanted], listed: Mapping[TopicPartition, ListedOffset]
    ) -> dict[TopicPartition, int]:
        """Go where the leaders said; what has a position leaves `wanted`. What is to be asked for next: the ends of
        those where by_duration found no record that is as young."""
        for key, found in listed.items():
            if found.offset >= 0:
                self._go_to(wanted.pop(key), found.offset)
        return {key: LATEST_TIMESTAMP for key, found in listed.items() if found.offset < 0}

    def _go_to(self, wanted: _Wanted, offset: int) -> None:
        """Unless it was sought or given up meanwhile."""
        with self._fetcher.lock:
            if wanted.partition.moves == wanted.moves:
                wanted.partition.seek(offset)

    def _reset_of(self, partition: AssignedPartition) -> str:
        return partition.reset or self._config.auto_offset_reset

    def _reset_timestamp(self, partition: AssignedPartition) -> int:
        reset = self._reset_of(partition)
        if reset == "none":
            raise BusError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.partition} has no position, and auto_offset_reset is none"
            )
        if reset.startswith(BY_DURATION):
            duration = duration_ms(reset[len(BY_DURATION) :])
            assert duration is not None, "the config was checked"
            return max(0, int(time.time() * 1000) - duration)
        return EARLIEST_TIMESTAMP if reset == "earliest" else LATEST_TIMESTAMP
