"""A partition that this broker follows, for the consumers that read it here (KIP-392).

Guards three promises. A follower shows no version that its leader has not called committed: one that lies in the store
may be a commit whose outcome is not known yet. What it shows never goes back. And it shows nothing once it may have
lost touch: while it is fenced, or when the leader has been silent for `SILENCE_MAX_MS`. A follower that is late makes
its readers wait, and sends them back to the leader; it is never wrong.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bus.cluster_metadata.cluster import ClusterState, Leadership
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import LogBatch, TopicPartition
from bus.partition_log.reads import NotYet, Readable, decide_follower_fetch, refuse_offset
from bus.partition_log.state import PartitionState
from bus.ports import Clock, LogState
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.replicas.followed_tables import FollowedTable, FollowedTables
from bus.runtime.wakeable import Wakeable

_log = logging.getLogger(__name__)

# A leader with nothing to tell answers after ten seconds, and has two more to do so.
SILENCE_MAX_MS = 15_000


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """What a fetch asks of a partition, as a `Partition` has it. It is read beside all that happens to the table, also
    when this broker begins to lead it."""

    followed: FollowedTable
    leadership: Leadership
    calls: BlockingCalls

    @property
    def name(self) -> TopicPartition:
        return self.followed.name

    def decide_fetch(
        self, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
    ) -> Readable | NotYet | Refused:
        settled = self.followed.log.settled
        if settled is None or self.followed.table is None:
            return NotYet(self._refuse("it has not followed the leader's log so far"))
        return decide_follower_fetch(self._state_at(settled), offset, current_leader_epoch, seen_version)

    def _state_at(self, settled: LogState) -> PartitionState:
        return PartitionState(
            log_start=settled.log_start,
            high_watermark=settled.high_watermark,
            log_end=settled.high_watermark,
            leader_epoch=max(settled.leader_epoch, self.leadership.leader_epoch),
            version=settled.version,
        )

    def bytes_available(self, readable: Readable, enough: int) -> int:
        """All lies in files, and counts as enough."""
        return enough if readable.offset < readable.end_offset else 0

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult | Refused:
        """As `Partition.read`."""
        settled, table = self.followed.log.settled, self.followed.table
        if settled is None or table is None:
            return self._refuse("its table cannot be read for now")
        batches: Sequence[LogBatch] = ()
        if readable.offset < readable.end_offset:
            call = functools.partial(table.read, readable.offset, end_offset=readable.end_offset, max_bytes=max_bytes)
            batches = await self.calls.read(call)
            log_start = table.state.log_start
            if readable.offset < log_start:
                return refuse_offset(replace(self._state_at(settled), log_start=log_start), readable.offset)
        return ReadResult(batches, settled.high_watermark, settled.log_start, settled.version)

    def refuse_read(self, fault: StorageFault) -> Refused:
        """Its leader says what is wrong with the log, if anything is: files that it has replaced may be gone here."""
        where = {"topic": self.name.topic, "partition": self.name.partition}
        _log.info("records cannot be read as a follower: %s", fault, extra=where)
        return self._refuse(str(fault))

    def _refuse(self, reason: str) -> Refused:
        leader_id = self.leadership.leader_id
        message = f"{self.name} is led by broker {leader_id}, and a follower cannot serve it for now: {reason}"
        return Refused(ErrorCode.OFFSET_NOT_AVAILABLE, message)

    def add_reader(self, event: Wakeable) -> None:
        """Have `event` set when there may be more to read, or nothing any more, until `remove_reader`."""
        self.followed.log.add_reader(event)

    def remove_reader(self, event: Wakeable) -> None:
        self.followed.log.remove_reader(event)


class FollowedPartitions:
    """Those of one broker."""

    def __init__(self, broker_id: int, tables: FollowedTables, *, calls: BlockingCalls, clock: Clock) -> None:
        self._broker_id = broker_id
        self._tables = tables
        self._calls = calls
        self._clock = clock
        self._answered: dict[int, tuple[float, int]] = {}  # by broker id: when, by both clocks

    def note_answer(self, leader_id: int) -> None:
        """That broker has told what it committed."""
        self._answered[leader_id] = self._clock.monotonic_ms(), self._clock.now_ms()

    def find(self, cluster: ClusterState, name: TopicPartition) -> FollowedPartition | Refused:
        """A partition that exists, and that another broker leads. NOT_LEADER_OR_FOLLOWER if this broker does not follow
        it, or may have lost touch."""
        topic, leadership = cluster.topics[name.topic], cluster.leadership(name)
        assert leadership is not None, f"expected a partition that exists, found {name}"
        followed = self._tables.find(name, topic.topic_id)
        if followed is None:
            reason = "and not followed here"
        elif (own := cluster.brokers.get(self._broker_id)) is None or own.is_fenced:
            reason = "and this follower is fenced"
        elif not self._is_in_touch(leadership.leader_id):
            reason = f"which has told this follower nothing for {SILENCE_MAX_MS // 1000} s"
        else:
            return FollowedPartition(followed, leadership, self._calls)
        message = f"{name} is led by broker {leadership.leader_id}, {reason}"
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    def _is_in_touch(self, leader_id: int) -> bool:
        """By both clocks: a virtual machine that is moved may stop the one that only goes forward. A wall clock
        that was set back tells nothing."""
        if leader_id not in self._answered:
            return False
        monotonic_ms, wall_ms = self._answered[leader_id]
        return (
            self._clock.monotonic_ms() - monotonic_ms < SILENCE_MAX_MS
            and abs(self._clock.now_ms() - wall_ms) < SILENCE_MAX_MS
        )
