"""The partitions that this broker leads: opened and closed as the cluster metadata say.

Theory of operation. `follow` takes each state of the cluster and begins what cluster_metadata/cluster_state.py plans by
the difference to the state before. It knows states only: which broker wrote a record does not matter here. Opening and
closing a table take long, so they are tasks; those of one partition run one after another, and an opening that a newer
state has overtaken opens nothing. A partition that cannot be opened is refused by name, and the others serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, Lead, Leadership, Topic, plan_hosting
from bus.cluster_metadata.configs import resolve_topic_config
from bus.errors import ErrorCode, NotController, Refused, StorageDamaged, StorageFault, show_range, show_way_out
from bus.model import LogBatch, TopicPartition
from bus.partition_log.reads import NotYet, Readable, decide_follower_fetch, refuse_offset
from bus.partition_log.state import PartitionState
from bus.ports import Clock, CommitOutcome, LogState, PartitionTable, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.leader_log import refuse_lead
from bus.runtime.partitions.maintenance import Maintenance
from bus.runtime.partitions.partition import Partition, ReadResult
from bus.runtime.partitions.partition_settings import PartitionSettings, settings_of
from bus.runtime.partitions.tail_cache import TailCache
from bus.runtime.replicas.followed_tables import CommittedVersions, FollowedTable, FollowedTables
from bus.runtime.replicas.in_sync_replicas import InSyncReplicas
from bus.runtime.tasks import TaskScope, Wakeable
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)


# A leader with nothing to report answers after ten seconds, and has two more to do so.
SILENCE_MAX_MS = 15_000


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """A partition that this broker follows, for the consumers that read it here (KIP-392); fetches use it like a
    `Partition`. Reads run beside everything that happens to the table, also when this broker begins to lead it.

    Guards three promises. A follower shows no version before its leader calls it committed: a version in the store may
    be a commit whose outcome is not known yet. The visible position never goes back. And a follower shows nothing once
    it may have lost touch: while it is fenced, or when the leader has been silent for `SILENCE_MAX_MS`. A late follower
    makes its readers wait, and sends them back to the leader; it never returns wrong records."""

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
        """Read like `Partition.read`."""
        settled, table = self.followed.log.settled, self.followed.table
        if settled is None or table is None:
            return self._refuse("its table cannot be read for now")
        batches: Sequence[LogBatch] = ()
        if readable.offset < readable.end_offset:
            call = functools.partial(
                table.log.read, readable.offset, end_offset=readable.end_offset, max_bytes=max_bytes
            )
            batches = await self.calls.read(call)
            log_start = table.state.log_start
            if readable.offset < log_start:
                return refuse_offset(replace(self._state_at(settled), log_start=log_start), readable.offset)
        return ReadResult(batches, settled.high_watermark, settled.log_start, settled.version)

    def refuse_read(self, fault: StorageFault) -> Refused:
        """Refuse a read. The partition's leader reports any damage of the log: files that it has replaced may be gone
        here."""
        where = {"topic": self.name.topic, "partition": self.name.partition}
        _log.info("records cannot be read as a follower: %s", fault, extra=where)
        return self._refuse(str(fault))

    def _refuse(self, reason: str) -> Refused:
        leader_id = self.leadership.leader_id
        message = f"{self.name} is led by broker {leader_id}, and a follower cannot serve it for now: {reason}"
        return Refused(ErrorCode.OFFSET_NOT_AVAILABLE, message)

    def add_reader(self, event: Wakeable) -> None:
        """Have `event` set when there may be more to read, or when there never will be, until `remove_reader`."""
        self.followed.log.add_reader(event)

    def remove_reader(self, event: Wakeable) -> None:
        self.followed.log.remove_reader(event)


class FollowedPartitions:
    """The followed partitions of one broker."""

    def __init__(self, broker_id: int, tables: FollowedTables, *, calls: BlockingCalls, clock: Clock) -> None:
        self._broker_id = broker_id
        self._tables = tables
        self._calls = calls
        self._clock = clock
        self._answered: dict[int, tuple[float, int]] = {}  # broker id -> time of its last answer by both clocks

    def note_answer(self, leader_id: int) -> None:
        """Note that this broker has reported its commits."""
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
        """True if both clocks agree: moving a virtual machine may stop the monotonic clock, and a wall clock that was
        set back proves nothing."""
        if leader_id not in self._answered:
            return False
        monotonic_ms, wall_ms = self._answered[leader_id]
        return (
            self._clock.monotonic_ms() - monotonic_ms < SILENCE_MAX_MS
            and abs(self._clock.now_ms() - wall_ms) < SILENCE_MAX_MS
        )


RaiseLeaderEpoch = Callable[[TopicPartition, int], Awaitable[None]]
# After an opening that failed; each further one waits twice as long as the one before it.
_REOPEN_S_MIN = 1.0
_REOPEN_S_MAX = 60.0
# Longer than a commit of a leader that is gone can be under way.
_VERSION_AGE_MIN_MS = 60_000
_VERSION_AGE_MIN_SESSIONS = 10
# A table that was followed is opened in less. Whoever is refused instead pauses for twice as long.
AWAITED_OPENING_S = 0.05

NewTables = Mapping[tuple[str, int], PartitionTable]  # keyed by topic id and partition number


@dataclass(slots=True, eq=False)
class _Hosted:
    """`serving` is a refusal while the partition is being opened, and if it cannot be opened."""

    lead: Lead
    serving: Partition | Refused
    began_s: float  # the loop's clock
    followed: FollowedTable | None = None  # set until the partition is led
    table: PartitionTable | None = None  # set while it is led
    failed_openings: int = 0


class PartitionHost:
    """`raise_leader_epoch` has the metadata give a partition a leader epoch above the one that its log has."""

    def __init__(
        self,
        broker_id: int,
        storage: Storage,
        config: BrokerConfig,
        raise_leader_epoch: RaiseLeaderEpoch,
        *,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
        maintenance: Maintenance,
    ) -> None:
        self._broker_id = broker_id
        self._storage = storage
        self._config = config
        self._raise_leader_epoch = raise_leader_epoch
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._maintenance = maintenance
        self._cache = TailCache(config.log_cache_bytes)
        self._cluster = self._carried_out = EMPTY_CLUSTER
        self._hosted: dict[str, dict[int, _Hosted]] = {}  # topic -> partition number
        self._under_way: dict[TopicPartition, asyncio.Task[None]] = {}  # the last task of each partition
        self._new_tables: dict[tuple[str, int], PartitionTable] = {}
        self._stepped_down: Refused | None = None
        self._reopening: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._is_ended = False
        self.committed_versions = CommittedVersions(storage.incarnation)
        self.in_sync = InSyncReplicas(
            broker_id, self.committed_versions, lag_ms_max=config.replica_lag_time_max_ms, clock=clock
        )
        self.followed = FollowedTables(
            broker_id, storage, calls=calls, tasks=tasks, wait_until_idle=self.wait_until_settled
        )
        self.followed_partitions = FollowedPartitions(broker_id, self.followed, calls=calls, clock=clock)

    # ------------------------------------------------------------------ following the metadata

    def follow(self, cluster: ClusterState) -> None:
        """Begin what the new state requires; `wait_until_settled` waits for it. If it raises, the next state completes
        it."""
        plan = plan_hosting(self._carried_out, cluster, self._hosted, broker_id=self._broker_id)
        self._cluster, self._carried_out = cluster, EMPTY_CLUSTER
        self._maintenance.version_age_min_ms = self._version_age_min_ms(cluster)
        for name in plan.retires:
            self._close(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name.topic} was deleted")
        for name in plan.closes:
            self._close(name, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name}: its leader has changed")
        for name, lead in plan.opens.items():
            self._open(name, lead)
        for topic in plan.configures:
            settings = self._settings(topic)
            for hosted in self._hosted.get(topic.name, {}).values():
                if isinstance(hosted.serving, Partition):
                    hosted.serving.configure(settings)
        self.followed.follow(cluster)
        self.in_sync.follow(cluster)
        self._carried_out = cluster

    def _version_age_min_ms(self, cluster: ClusterState) -> int:
        """The minimum age of a version before cleanup may delete it: another broker may be stalled in a commit, and
        would take the number of a version that was deleted early."""
        if cluster.is_alone(self._broker_id):
            return 0
        return max(_VERSION_AGE_MIN_MS, _VERSION_AGE_MIN_SESSIONS * self._config.broker_session_timeout_ms)

    def step_down(self, reason: Refused) -> None:
        """Another broker leads all partitions: stop those that are open, and those that are still being opened."""
        self._stepped_down = reason
        for partition in self.partitions:
            partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason.message)

    def end_openings(self) -> None:
        """Before the broker stops: what could not be opened is not tried again."""
        self._is_ended = True
        self.followed.stop()
        for timer in self._reopening.values():
            timer.cancel()
        self._reopening.clear()

    async def wait_until_settled(self, topic: str | None = None) -> None:
        """Wait until every opening and closing that was begun for that topic, or for all topics, has ended."""
        while tasks := [task for name, task in self._under_way.items() if topic in (None, name.topic)]:
            await asyncio.wait(tasks)

    async def wait_for_openings(self, names: Iterable[TopicPartition]) -> bool:
        """Wait for those of the partitions that this broker has just begun to open, but only for a moment, because
        later requests wait too. True if there was one."""
        now_s = asyncio.get_running_loop().time()
        openings: dict[asyncio.Task[None], float] = {}
        for name in names:
            task, hosted = self._under_way.get(name), self._hosted.get(name.topic, {}).get(name.partition)
            if task is not None and hosted is not None and hosted.began_s + AWAITED_OPENING_S > now_s:
                openings[task] = hosted.began_s + AWAITED_OPENING_S - now_s
        if openings:
            await asyncio.wait(openings, timeout=max(openings.values()))
        return bool(openings)

    @contextlib.contextmanager
    def handing_over(self, tables: NewTables) -> Iterator[None]:
        """Hold tables that were just created: those of them that are opened in this block are not read again."""
        self._new_tables.update(tables)
        try:
            yield
        finally:
            for key in tables:
                self._new_tables.pop(key, None)

    def _open(self, name: TopicPartition, lead: Lead) -> None:
        opening = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is being opened")
        hosted = _Hosted(lead, opening, asyncio.get_running_loop().time())
        self._hosted.setdefault(name.topic, {})[name.partition] = hosted
        hosted.followed = self.followed.take(name, lead.topic_id)
        table = self._new_tables.pop((lead.topic_id, name.partition), None)
        self._begin(name, functools.partial(self._open_table, hosted, table))

    async def _open_table(self, hosted: _Hosted, table: PartitionTable | None, name: TopicPartition) -> None:
        followed, hosted.followed = hosted.followed, None
        if not self._is_wanted(name, hosted):
            return
        try:
            if table is None and followed is not None:
                table = await self.followed.table_of(followed)
            # No fence if this broker is the only one: then the leader before is an earlier life of it.
            fence = not self._cluster.is_alone(self._broker_id)
            take_over = functools.partial(self._take_over, name, hosted.lead, table, fence=fence)
            led, outcome = await self._calls.open(take_over)
            refused = refuse_lead(str(name), outcome, hosted.lead.leader_epoch, fenced=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if refused is not None and refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                hosted.serving = refused
                await self._raise_leader_epoch(name, led.state.leader_epoch)
            elif refused is not None:
                raise StorageFault(refused.message)
            elif self._is_wanted(name, hosted):
                self._serve(name, hosted, led)
        except NotController:  # it will have given the partition another leader, which is known here soon
            self._open_again_later(name, hosted)
        except Exception as fault:  # a fault of one table concerns no other table
            way_out = f"; {show_way_out(name.topic, name.partition)}" if isinstance(fault, StorageDamaged) else ""
            hosted.serving = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {fault}{way_out}")
            where = {"topic": name.topic, "partition": name.partition}
            is_foreseen = isinstance(fault, StorageFault)
            _log.error("partition does not serve: %s", fault, extra=where, exc_info=not is_foreseen)
            if is_foreseen and not isinstance(fault, StorageDamaged):
                self._open_again_later(name, hosted)

    def _take_over(
        self, name: TopicPartition, lead: Lead, table: PartitionTable | None, *, fence: bool
    ) -> tuple[PartitionTable, CommitOutcome]:
        """Open the table and take the lead, in a thread."""
        if table is None:
            table = self._storage.open_partition(name, topic_id=lead.topic_id)
        return table, table.lead(lead.leader_epoch, self._clock.now_ms(), fence=fence)

    def _open_again_later(self, name: TopicPartition, hosted: _Hosted) -> None:
        if self._is_ended or not self._is_wanted(name, hosted):
            return
        delay_s = min(_REOPEN_S_MIN * 2 ** min(hosted.failed_openings, 10), _REOPEN_S_MAX)
        hosted.failed_openings += 1
        loop = asyncio.get_running_loop()
        if (before := self._reopening.get(name)) is not None:  # the timer of an earlier leadership
            before.cancel()
        self._reopening[name] = loop.call_later(delay_s, self._open_again, name, hosted)

    def _open_again(self, name: TopicPartition, hosted: _Hosted) -> None:
        del self._reopening[name]
        if self._is_wanted(name, hosted):
            self._begin(name, functools.partial(self._open_table, hosted, None))

    def _is_wanted(self, name: TopicPartition, hosted: _Hosted) -> bool:
        return self._hosted.get(name.topic, {}).get(name.partition) is hosted

    def _serve(self, name: TopicPartition, hosted: _Hosted, table: PartitionTable) -> None:
        topic_id = hosted.lead.topic_id

        def on_committed(name: TopicPartition, version: int) -> None:
            if self._is_wanted(name, hosted):  # else the commit was under way when another broker was elected
                is_awaited = partition.min_insync_replicas > 1
                self.committed_versions.note(name, topic_id, version, is_awaited=is_awaited)

        hosted.table = table
        hosted.serving = partition = Partition(
            name,
            table,
            leader_epoch=hosted.lead.leader_epoch,
            settings=self._settings(self._cluster.topics[name.topic]),
            queue_bytes_max=self._config.queued_max_bytes,
            clock=self._clock,
            calls=self._calls,
            cache=self._cache,
            tasks=self._tasks,
            maintenance=self._maintenance,
            on_committed=on_committed,
        )
        self.committed_versions.note(name, topic_id, partition.state.version)
        self.in_sync.begin(name)
        if self._stepped_down is not None:
            partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, self._stepped_down.message)

    def _close(self, name: TopicPartition, code: ErrorCode, reason: str) -> None:
        of_topic = self._hosted[name.topic]
        hosted = of_topic.pop(name.partition)
        if not of_topic:
            del self._hosted[name.topic]

        async def close(_: TopicPartition) -> None:
            if isinstance(hosted.serving, Partition):
                await hosted.serving.close(Refused(code, reason))
            if hosted.table is not None:
                self.followed.give(name, hosted.lead.topic_id, hosted.table)

        self.committed_versions.forget(name)
        self.in_sync.forget(name)
        self._begin(name, close)

    def _begin(self, name: TopicPartition, step: Callable[[TopicPartition], Awaitable[None]]) -> None:
        """Begin a step behind the running ones of that partition."""
        before = self._under_way.get(name)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await step(name)

        task = self._under_way[name] = self._tasks.start(run(), f"host/{name}")
        task.add_done_callback(functools.partial(self._forget, name))

    def _forget(self, name: TopicPartition, task: asyncio.Task[None]) -> None:
        if self._under_way.get(name) is task:
            del self._under_way[name]

    # ------------------------------------------------------------------ look-ups

    @property
    def partitions(self) -> list[Partition]:
        """All open partitions, stopped ones included."""
        return [
            hosted.serving
            for of_topic in self._hosted.values()
            for hosted in of_topic.values()
            if isinstance(hosted.serving, Partition)
        ]

    def find(self, name: TopicPartition, topic_id: str = "") -> Partition | Refused:
        """`topic_id`, if not empty, has to be the topic's: else it was deleted and created again."""
        topic = self._cluster.topics.get(name.topic)
        if topic is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name.topic!r}")
        if topic_id and topic_id != topic.topic_id:
            return Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"topic {name.topic} has the id {topic.topic_id}, found {topic_id}: was it deleted and created again?",
            )
        hosted = self._hosted.get(name.topic, {}).get(name.partition)
        if hosted is not None:
            return hosted.serving
        leadership = self._cluster.leadership(name)
        if leadership is not None:
            return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is led by broker {leadership.leader_id}")
        return Refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"expected a partition of {name.topic} {show_range(0, len(topic.partitions) - 1)}, found {name.partition}",
        )

    def find_replica(self, name: TopicPartition, topic_id: str = "") -> Partition | FollowedPartition | Refused:
        """Find the partition like `find`, or its follower here if another broker leads it (KIP-392)."""
        found = self.find(name, topic_id)
        leadership = self._cluster.leadership(name)
        is_elsewhere = leadership is not None and leadership.leader_id != self._broker_id
        if isinstance(found, Refused) and found.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and is_elsewhere:
            return self.followed_partitions.find(self._cluster, name)
        return found

    def find_error(self, name: TopicPartition) -> Refused | None:
        """Why a partition that exists does not serve; None if it does."""
        found = self.find(name)
        return found if isinstance(found, Refused) else found.stopped

    def _settings(self, topic: Topic) -> PartitionSettings:
        return settings_of(topic.name, resolve_topic_config(topic.configs, self._config), self._config)
