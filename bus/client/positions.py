"""Where each assigned partition goes on reading, and who leads it: found in the thread that polls.

Guards the order in which a position comes about: what a seek asked for, else what the group has committed, else
auto.offset.reset; and it is looked up once, when it is needed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from bus.client.assigned_partition import AssignedPartition
from bus.client.cluster import Cluster
from bus.client.config_values import BY_DURATION, duration_ms
from bus.client.configs import ConsumerConfig
from bus.client.fetcher import Fetcher
from bus.client.list_offsets import list_offsets
from bus.client.values import ListedOffset, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

logger = logging.getLogger(__name__)


class CommittedOffsets(Protocol):
    """What a group knows."""

    def committed(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]: ...


class Positions:
    """`group` None: nobody commits. `is_lenient` says whether a topic that does not exist may yet come to be."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        fetcher: Fetcher,
        group: CommittedOffsets | None,
        *,
        is_lenient: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._fetcher = fetcher
        self._group = group
        self._is_lenient = is_lenient

    def is_unsettled(self, now: float) -> bool:
        """A partition waits for a leader or a position, and it is time to look for it."""
        return any(
            ((partition.position is None and not partition.is_paused) or partition.is_leader_doubtful)
            and now >= partition.retry_at
            for partition in self._fetcher.assigned.values()
        )

    def settle(self, deadline: float) -> None:
        """Find what is missing and due. Raises `BusError` for what does not mend itself."""
        now = time.monotonic()
        due = [partition for partition in self._fetcher.assigned.values() if now >= partition.retry_at]
        doubtful = [
            partition for partition in due if partition.is_leader_doubtful or self._is_leader_unknown(partition)
        ]
        unset = [partition for partition in due if partition.position is None and not partition.is_paused]
        if not (doubtful or unset):
            return
        try:
            self._find_leaders(doubtful)
            if unset:
                keys = [partition.partition for partition in unset if partition.position is None]
                self.find(keys, timeout_s=max(0.0, deadline - time.monotonic()))
        except BusError as error:
            is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._is_lenient()
            if not is_gone and not self._cluster.may_retry(error):
                raise
            logger.info("finding leaders and positions is tried again: %s", error)
            self._put_off([*doubtful, *unset])

    def _put_off(self, partitions: list[AssignedPartition]) -> None:
        with self._fetcher.lock:
            for partition in {id(partition): partition for partition in partitions}.values():
                self._fetcher.put_off(partition, time.monotonic())

    # ------------------------------------------------------------ leaders

    def _is_leader_unknown(self, partition: AssignedPartition) -> bool:
        info = self._cluster.cached_topic(partition.partition.topic)
        if info is None or not partition.topic_id or self._cluster.is_stale(info):
            return True
        # Another topic's look-up may have brought metadata of this one.
        return partition.topic_id != info.topic_id

    def _find_leaders(self, partitions: list[AssignedPartition]) -> None:
        topics = {partition.partition.topic for partition in partitions}
        self._cluster.forget({p.partition.topic for p in partitions if p.is_leader_doubtful})
        for partition in partitions:
            self._cluster.wait_partition(partition.partition.topic, partition.partition.partition, timeout_s=0.0)
        with self._fetcher.lock:
            for partition in [p for p in self._fetcher.assigned.values() if p.partition.topic in topics]:
                self._note_leader(partition)

    def _note_leader(self, partition: AssignedPartition) -> None:
        info = self._cluster.cached_topic(partition.partition.topic)
        if info is None or partition.partition.partition >= len(info.partitions):
            return
        if partition.topic_id not in ("", info.topic_id):
            logger.warning("%s was deleted and created again: resetting the position", partition.partition)
            partition.unset_position(None)
        partition.topic_id = info.topic_id
        partition.leader_epoch = info.partitions[partition.partition.partition].leader_epoch
        address = self._cluster.leader_address(info, partition.partition.partition)
        partition.is_leader_doubtful = address is None
        if address is None:
            self._fetcher.put_off(partition, time.monotonic())

    # ------------------------------------------------------------ positions

    def find(self, keys: list[TopicPartition], *, timeout_s: float) -> None:
        """Give each of these a position. Raises `BusError`."""
        deadline = time.monotonic() + timeout_s
        assigned = {key: partition for key in keys if (partition := self._fetcher.assigned.get(key)) is not None}
        asked = [key for key, partition in assigned.items() if partition.has_committed]
        if asked and self._group is not None:
            for key, committed in self._group.committed(asked, deadline).items():
                if committed is not None:
                    with self._fetcher.lock:
                        assigned.pop(key).seek(committed.offset)
        if not assigned:
            return
        wanted = {key: self._reset_timestamp(partition) for key, partition in assigned.items()}
        listed = list_offsets(self._cluster, wanted, timeout_s=max(0.0, deadline - time.monotonic()))
        behind_all = [key for key, found in listed.items() if found.offset < 0]
        if behind_all:  # by_duration: nothing is as young
            ends = dict.fromkeys(behind_all, LATEST_TIMESTAMP)
            listed |= list_offsets(self._cluster, ends, timeout_s=max(0.0, deadline - time.monotonic()))
        self._take(assigned, listed)

    def _take(
        self, assigned: Mapping[TopicPartition, AssignedPartition], listed: Mapping[TopicPartition, ListedOffset]
    ) -> None:
        with self._fetcher.lock:
            for key, found in listed.items():
                assigned[key].seek(found.offset)

    def _reset_timestamp(self, partition: AssignedPartition) -> int:
        reset = partition.reset or self._config.auto_offset_reset
        if reset == "none":
            raise BusError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.partition} has no position, and auto_offset_reset is none"
            )
        if reset.startswith(BY_DURATION):
            duration = duration_ms(reset[len(BY_DURATION) :])
            assert duration is not None, "the config was checked"
            return max(0, int(time.time() * 1000) - duration)
        return EARLIEST_TIMESTAMP if reset == "earliest" else LATEST_TIMESTAMP
