"""The tables of the partitions that this broker follows: open, and read on as their leaders commit.

So a partition that changes its leader is served a moment later: its new leader reads the few versions that it does not
have, and commits its fence. Guards one promise: following never delays what this broker leads. One thread reads, a few
tables at a time; it stands back while partitions are opened to be led, and rests for a multiple of the processor time
that it has taken. A follower that falls behind is less warm, and that is all: correctness never depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, plan_following
from bus.errors import Refused, StorageFault
from bus.model import BrokerEndpoint, TopicPartition
from bus.ports import LogState, PartitionTable, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope, Wakeable, time_limit

_log = logging.getLogger(__name__)


class FollowedLog:
    """The known and the visible position of a followed log.

    Guards two promises: only a version that a leader has called committed is visible, or one before it; and the visible
    version never goes back. A table is read to its end, which may be a version whose leader does not know yet whether
    it is durable; then the earlier version stays visible until the leader reports that one, or a later one.
    """

    def __init__(self) -> None:
        self._reported_version = -1
        self._found: LogState | None = None
        self.settled: LogState | None = None  # visible to consumers
        self._readers: dict[Wakeable, None] = {}

    def tell(self, version: int) -> None:
        """A leader has committed that version."""
        self._reported_version = max(self._reported_version, version)
        self._settle()

    @property
    def is_behind(self) -> bool:
        """There is more to read."""
        return self._found is None or self._found.version < self._reported_version

    def take(self, found: LogState) -> None:
        """The table was read so far."""
        self._found = found
        self._settle()

    def _settle(self) -> None:
        found, settled = self._found, self.settled
        if found is None or found.version > self._reported_version:
            return
        if settled is None or found.version > settled.version:
            self.settled = found
            self.wake_readers()

    # ------------------------------------------------------------------ readers

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def add_reader(self, event: Wakeable) -> None:
        """Have `event` set whenever more is shown, until `remove_reader`."""
        self._readers[event] = None

    def remove_reader(self, event: Wakeable) -> None:
        self._readers.pop(event, None)

    def wake_readers(self) -> None:
        """Wake the readers, also when nothing is visible here any longer."""
        for event in self._readers:
            event.set()


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The last version of a partition's table, as its leader knows it."""

    name: TopicPartition
    topic_id: str
    version: int


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """The versions that a follower has applied of partitions that the leader leads: all, or those since its last
    report."""

    broker_id: int
    broker_epoch: int
    applied: Sequence[CommittedVersion]


@dataclass(frozen=True, slots=True)
class VersionsRequest:
    """`after` is the `end` of the last answer, which came from the leader's life `incarnation`; 0 and "" if there was
    none. The answer waits so long, at most, for a version to tell of."""

    incarnation: str
    after: int
    wait_ms_max: int
    report: FollowerReport


@dataclass(frozen=True, slots=True)
class VersionsAnswer:
    """`is_awaited`: somebody waits until followers have one of the versions, so they are to report at once."""

    incarnation: str
    end: int
    versions: Sequence[CommittedVersion]
    is_awaited: bool = False


class Leaders(Protocol):
    """The other brokers, as leaders of partitions that this one follows."""

    async def committed_versions(
        self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
    ) -> VersionsAnswer | Refused: ...


# In one answer: a follower takes no more than some thousands of items.
ANSWER_VERSIONS_MAX = 5_000


class CommittedVersions:
    """The versions that this broker has committed as a leader, for the brokers that follow its partitions: the last
    version of each partition, in the order of the commits. A follower names the place up to which it has the list, and
    gets what comes behind it; so an answer that is lost, doubled or late does no harm. Places belong to one incarnation
    of the leader: a follower that knows another incarnation begins again."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        # (place, version, whether it is awaited), in the order of places
        self._last: dict[TopicPartition, tuple[int, CommittedVersion, bool]] = {}
        self._end = 0
        self._waiting: dict[asyncio.Event, None] = {}

    def note(self, name: TopicPartition, topic_id: str, version: int, *, is_awaited: bool = False) -> None:
        """Note a commit. To be called when this broker begins to lead a partition, and after each commit. `is_awaited`:
        somebody waits until followers have that version."""
        self._end += 1
        self._last.pop(name, None)
        self._last[name] = self._end, CommittedVersion(name, topic_id, version), is_awaited
        for wake in self._waiting:
            wake.set()

    def last(self, name: TopicPartition) -> CommittedVersion | None:
        """None: this broker does not lead that partition."""
        found = self._last.get(name)
        return None if found is None else found[1]

    def forget(self, name: TopicPartition) -> None:
        """Another broker leads it."""
        self._last.pop(name, None)

    def answer(self, request: VersionsRequest) -> VersionsAnswer:
        """Answer without waiting: with the versions behind the place of the request, the first ones if there are more
        than one answer may have. The next question then gets the others at once."""
        after = request.after if request.incarnation == self._incarnation else 0
        newer = list(itertools.takewhile(lambda one: one[0] > after, reversed(self._last.values())))
        first = newer[::-1][:ANSWER_VERSIONS_MAX]
        end = self._end if len(first) == len(newer) else first[-1][0]
        is_any_awaited = any(is_awaited for _, _, is_awaited in first)
        return VersionsAnswer(self._incarnation, end, [version for _, version, _ in first], is_any_awaited)

    async def wait(self, request: VersionsRequest, wake: asyncio.Event) -> VersionsAnswer:
        """Return as soon as there is a version to report; without one when `wake` is set or the time is over."""
        answer = self.answer(request)
        if not answer.versions:
            self._waiting[wake] = None
            try:
                async with time_limit(request.wait_ms_max / 1000):
                    await wake.wait()
            except asyncio.TimeoutError:
                pass
            finally:
                del self._waiting[wake]
            answer = self.answer(request)
        return answer


# A leadership that moves waits for no more than these.
_TABLES_AT_ONCE = 8
# In one report: a request may have no more than some thousands of items.
REPORT_PARTITIONS_MAX = 5_000
# After some processor time: so following takes a fifth of one core at most.
_REST_PER_PROCESSOR_TIME = 4
# A leader may wait for a table that could not be read before it commits more (min.insync.replicas).
_RETRY_S = 10.0


@dataclass(slots=True, eq=False)
class FollowedTable:
    """`table` is None until it was opened, and after a fault."""

    name: TopicPartition
    topic_id: str
    table: PartitionTable | None = None
    log: FollowedLog = field(default_factory=FollowedLog)  # visible to consumers


class FollowedTables:
    """`wait_until_idle` returns when no partition is being opened to be led."""

    def __init__(
        self,
        broker_id: int,
        storage: Storage,
        *,
        calls: BlockingCalls,
        tasks: TaskScope,
        wait_until_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker_id = broker_id
        self._storage = storage
        self._calls = calls
        self._tasks = tasks
        self._wait_until_idle = wait_until_idle
        self._cluster = EMPTY_CLUSTER
        self._followed: dict[str, dict[int, FollowedTable]] = {}  # topic -> partition number
        self._due: OrderedDict[FollowedTable, None] = OrderedDict()  # to be opened or read on, in this order
        self._unreported: dict[FollowedTable, None] = {}  # read or told of since the last report to its leader
        self._failed: dict[FollowedTable, None] = {}  # to be opened again by `_retry`
        self._retry: asyncio.TimerHandle | None = None
        self._hurry = asyncio.Event()
        self._all_read = asyncio.Event()
        self._in_thread: Sequence[FollowedTable] = ()
        self._thread_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    # ------------------------------------------------------------------ what is followed

    @property
    def count(self) -> int:
        return sum(len(of_topic) for of_topic in self._followed.values())

    @property
    def is_reading(self) -> bool:
        return self._task is not None

    def follow(self, cluster: ClusterState) -> None:
        """After the host has taken what this broker leads now."""
        plan = plan_following(self._cluster, cluster, self._followed, broker_id=self._broker_id)
        self._cluster = cluster
        for name in plan.drops:
            self._pop(name)
        for name, topic_id in plan.follows.items():
            followed = self._followed.setdefault(name.topic, {})[name.partition] = FollowedTable(name, topic_id)
            self._due[followed] = None
        self._wake()

    def take(self, name: TopicPartition, topic_id: str) -> FollowedTable | None:
        """This broker leads that partition from now on. None: it was not followed. See `table_of`."""
        followed = self.find(name, topic_id)
        return None if followed is None else self._pop(name)

    async def table_of(self, taken: FollowedTable) -> PartitionTable | None:
        """Return the table that was taken, which nothing reads any longer; None if it is not open."""
        while taken in self._in_thread:
            await self._thread_ended.wait()
        return taken.table

    def give(self, name: TopicPartition, topic_id: str, table: PartitionTable) -> None:
        """Take back the table of a partition that this broker has led; nothing is committed to it any longer."""
        followed = self.find(name, topic_id)
        if followed is not None and followed.table is None and followed not in self._in_thread:
            followed.table = table
            followed.log.take(table.state)
            self._due[followed] = None
            self._wake()

    def note(self, versions: Iterable[CommittedVersion], *, is_awaited: bool = False) -> None:
        """Note versions that leaders have committed. `is_awaited`: they are read without a rest. Versions that were
        read before are reported once more: the first report may have come before its leader led."""
        for committed in versions:
            followed = self.find(committed.name, committed.topic_id)
            if followed is None:
                continue
            followed.log.tell(committed.version)
            if followed.table is None or followed.log.is_behind:
                self._due[followed] = None
                if followed.log.has_readers:
                    self._due.move_to_end(followed, last=False)
            else:
                self._unreported[followed] = None
        if is_awaited:
            self._hurry.set()
        self._wake()

    def take_report(self, leader_id: int, *, is_whole: bool) -> list[CommittedVersion]:
        """The versions that were applied of the partitions of that leader, since the last report or at all; of
        `REPORT_PARTITIONS_MAX` partitions at most, and of the others in the next report."""
        if is_whole:
            self._unreported.update((one, None) for of_topic in self._followed.values() for one in of_topic.values())
        report: list[CommittedVersion] = []
        for followed in list(self._unreported):
            leadership = self._cluster.leadership(followed.name)
            if leadership is not None and leadership.leader_id == leader_id:
                del self._unreported[followed]
                if followed.table is not None:
                    version = followed.table.state.version
                    report.append(CommittedVersion(followed.name, followed.topic_id, version))
                    if len(report) == REPORT_PARTITIONS_MAX:
                        break
        return report

    async def wait_until_read(self, timeout_s: float) -> None:
        """Wait until no table is due, or until the time is over."""
        if self.is_reading and (self._due or self._in_thread):
            with contextlib.suppress(asyncio.TimeoutError):
                async with time_limit(timeout_s):
                    await self._all_read.wait()

    def find(self, name: TopicPartition, topic_id: str) -> FollowedTable | None:
        followed = self._followed.get(name.topic, {}).get(name.partition)
        return followed if followed is not None and followed.topic_id == topic_id else None

    def _pop(self, name: TopicPartition) -> FollowedTable:
        of_topic = self._followed[name.topic]
        followed = of_topic.pop(name.partition)
        if not of_topic:
            del self._followed[name.topic]
        self._due.pop(followed, None)
        self._unreported.pop(followed, None)
        self._failed.pop(followed, None)
        followed.log.wake_readers()
        return followed

    # ------------------------------------------------------------------ reading

    def stop(self) -> None:
        """Stop; tables that the thread is reading are read to their end."""
        self._is_stopped = True
        self._due.clear()
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None and not self._in_thread:
            self._task.cancel()

    def _wake(self) -> None:
        if self._due and self._task is None and not self._is_stopped:
            self._task = self._tasks.start(self._read_all(), "followed tables")

    async def _read_all(self) -> None:
        """Ends when nothing is due."""
        try:
            while self._due:
                await self._wait_until_idle()
                self._in_thread = list(self._due)[:_TABLES_AT_ONCE]
                for followed in self._in_thread:
                    del self._due[followed]
                await self._read_some()
        finally:
            self._task = None

    async def _read_some(self) -> None:
        try:
            found, processor_s = await self._calls.follow(functools.partial(self._read, self._in_thread))
            for followed, table in zip(self._in_thread, found, strict=True):
                followed.table = table
                if table is not None:
                    followed.log.take(table.state)
                if self.find(followed.name, followed.topic_id) is followed:
                    self._note_read(followed)
        finally:
            self._in_thread = ()
            self._thread_ended.set()
            self._thread_ended = asyncio.Event()
        if not self._due:
            self._all_read.set()
            self._all_read = asyncio.Event()
        if not self._is_stopped:
            await self._rest(_REST_PER_PROCESSOR_TIME * processor_s)

    def _note_read(self, followed: FollowedTable) -> None:
        if followed.table is not None:
            self._unreported[followed] = None
            return
        self._failed[followed] = None
        if self._retry is None and not self._is_stopped:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._open_failed)

    def _open_failed(self) -> None:
        self._retry, failed = None, self._failed
        self._failed = {}
        for followed in failed:
            if followed.table is None and followed not in self._in_thread:
                self._due[followed] = None
        self._wake()

    async def _rest(self, seconds: float) -> None:
        """Rest, unless somebody waits for a due table."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(seconds):
                await self._hurry.wait()
        self._hurry.clear()

    def _read(self, some: Sequence[FollowedTable]) -> list[PartitionTable | None]:
        """Read the tables, in a thread."""
        return [self._read_one(followed) for followed in some]

    def _read_one(self, followed: FollowedTable) -> PartitionTable | None:
        try:
            if followed.table is None:
                return self._storage.open_partition(followed.name, topic_id=followed.topic_id)
            followed.table.follow()
            return followed.table
        except StorageFault as fault:  # the partition's leader reports the fault
            where = {"topic": followed.name.topic, "partition": followed.name.partition}
            _log.info("the table cannot be followed for now: %s", fault, extra=where)
            return None
        except Exception:  # a fault of one table concerns no other table
            where = {"topic": followed.name.topic, "partition": followed.name.partition}
            _log.exception("the table cannot be followed for now", extra=where)
            return None
