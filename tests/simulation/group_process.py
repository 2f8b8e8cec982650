"""A process with one consumer of the group: the real membership and commits, driven as `GroupClient` drives them.

Threads, gRPC and the fetcher are replaced: the thread that polls and the keeper are two tasks, records are numbers that
come as fast as they are read. The application may be slow, hang, freeze as a whole (SIGSTOP), or die.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bus.client.assignors import assignors_of
from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.group_requests import FindCoordinator, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch
from bus.client.group.link import LOST_COORDINATOR, CoordinatorFinder, GroupRequest
from bus.client.group.membership import Assign, Generation, Lead, Lose, Membership, Phase, Revoke, Work
from bus.client.group.offset_commits import Commit, OffsetCommits
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from tests.simulation.group_network import Call, Stream

if TYPE_CHECKING:
    from tests.simulation.group_world import World

_METADATA_AGE_MS = 5_000
_AT_ONCE_MAX = 1_000  # rounds of a task without any time passing

AUTO, ASYNC, SYNC = "auto", "async", "sync"


@dataclass(frozen=True)
class Habit:
    """The configuration and the code of a process."""

    strategy: str = "range"
    instance_id: str | None = None
    topics: frozenset[str] = frozenset({"t"})
    commits: str = AUTO


class Process:
    def __init__(self, world: World, name: str, habit: Habit) -> None:
        self._world = world
        self.name = name
        self.habit = habit
        self.config = parse_config(
            ConsumerConfig,
            {
                "group_id": world.group_id,
                "client_id": name,
                "group_instance_id": habit.instance_id,
                "partition_assignment_strategy": habit.strategy,
                "session_timeout_ms": 6_000,
                "heartbeat_interval_ms": 1_000,
                "max_poll_interval_ms": 10_000,
                "request_timeout_ms": 4_000,
                "default_api_timeout_ms": 6_000,
                "enable_auto_commit": habit.commits == AUTO,
                "auto_commit_interval_ms": 1_500,
            },
        )
        self.finder = CoordinatorFinder(
            world.group_id,
            self.config.request_timeout_ms,
            send=self._send,
            backoff_ms=self._backoff_ms,
            may_retry=lambda error: error.retriable,
            on_lost=self._cut_stream,
        )
        assignors = assignors_of(habit.strategy)
        self.membership = Membership(self.config, assignors, self.finder, send=self._send, backoff_ms=self._backoff_ms)
        self.commits = OffsetCommits(self.config, self.finder, self, send=self._send, backoff_ms=self._backoff_ms)
        self.positions: dict[TopicPartition, int | None] = {}  # of what is read; None: to be asked for
        self.is_alive = True
        self.is_consuming = True  # neither closed nor fenced
        self.is_closing = False
        self.frozen_until = 0.0
        self.hangs_for_s = 0.0  # when the application's code runs next
        self._changed = asyncio.Event()  # for the thread that polls
        self._due = asyncio.Event()  # for the keeper
        self._stream: Stream | None = None
        self._calls: dict[GroupRequest, Call] = {}
        self._answers: dict[GroupRequest, Any] = {}  # that the thread that polls waits for
        self._look_at_ms = -math.inf
        self._tasks = [world.spawn(self._poll_for_ever()), world.spawn(self._keep())]

    # ------------------------------------------------------------ its end

    def die(self) -> None:
        self._world.note(self.name, "dies")
        self._end()

    def _end(self) -> None:
        self.is_alive = self.is_consuming = False
        for task in self._tasks:
            task.cancel()
        for call in self._calls.values():
            call.give_up()
        self._cut_stream()

    def freeze(self, seconds: float) -> None:
        self._world.note(self.name, f"is frozen for {seconds:.3f} s")
        self.frozen_until = self._world.now + seconds

    @property
    def is_settled(self) -> bool:
        """It has taken over its assignment, and knows of no rebalance."""
        machine = self.membership
        return machine.phase is Phase.STABLE and not machine.is_rejoining() and not machine.has_work()

    # ------------------------------------------------------------ as the member that commits

    def commit_stamp(self) -> GroupMetadata | BusError:
        return self.membership.commit_stamp()

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self.membership.owned

    def note_refusal(self, error: BusError, generation: Generation) -> None:
        self.membership.note_refusal(error, generation)

    # ------------------------------------------------------------ requests and answers

    def _send(self, request: GroupRequest) -> None:
        if not isinstance(request.call, (Heartbeat, OffsetCommit)):
            self._calls[request] = Call(self._world, self, request)
            return
        assert request.address is not None
        if self._stream is None or self._stream.is_over or self._stream.address != request.address:
            self._cut_stream()
            self._stream = Stream(self._world, self, request.address)
        self._stream.send(request)

    def _cut_stream(self, is_late: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cut()

    def take_answer(self, request: GroupRequest, answer: Any) -> None:
        world = self._world
        if world.now < self.frozen_until:
            world.at_time(self.frozen_until, lambda: self.take_answer(request, answer))
            return
        if not self.is_alive:
            return
        world.note(self.name, f"<- {request.method}:", answer)
        self._calls.pop(request, None)
        match request.call:
            case FindCoordinator():
                self.finder.on_answer(request, answer, world.now_ms)
            case OffsetCommit():
                self.commits.on_answer(request, answer, world.now_ms)
            case OffsetFetch() | LeaveGroup():
                self._answers[request] = answer
            case _:
                self.membership.on_answer(request, answer, world.now_ms)
        self.commits.advance(world.now_ms)
        self._due.set()
        self._changed.set()
        world.check()

    def take_notice(self) -> None:
        if self._world.now < self.frozen_until:
            self._world.at_time(self.frozen_until, self.take_notice)
        elif self.is_alive:
            self.membership.heartbeat_now()
            self._due.set()

    def _backoff_ms(self, failures: int) -> float:
        return float(min(1_000, 100 * 2 ** min(failures, 10)) * self._world.random.uniform(0.8, 1.2))

    # ------------------------------------------------------------ the keeper

    async def _keep(self) -> None:
        rounds, at_ms = 0, -1.0
        while True:
            await self._thaw()
            now_ms = self._world.now_ms
            rounds, at_ms = (rounds + 1 if now_ms == at_ms else 0), now_ms
            assert rounds < _AT_ONCE_MAX, f"the keeper of {self.name} has no rest at {now_ms} ms"
            self.commits.advance(now_ms)
            due_ms = min(self.membership.tick(now_ms), self.commits.next_event(now_ms), now_ms + 60_000)
            if self.membership.has_news():
                self._changed.set()
            self._world.check()
            await self._wait_for(self._due, due_ms)

    async def _thaw(self) -> None:
        while self._world.now < self.frozen_until:  # noqa: ASYNC110  # it may be frozen anew, and nothing tells its end
            await asyncio.sleep(self.frozen_until - self._world.now)

    async def _wait_for(self, event: asyncio.Event, until_ms: float) -> None:
        handle = asyncio.get_running_loop().call_at(loop_time(until_ms), event.set)
        try:
            await event.wait()
        finally:
            handle.cancel()
        event.clear()
        await self._thaw()

    async def _wait_until(self, is_settled: Callable[[], bool], deadline_ms: float) -> None:
        while True:
            now_ms = self._world.now_ms
            self.commits.advance(now_ms)
            if is_settled() or now_ms >= deadline_ms:
                return
            due_ms = min(deadline_ms, self.commits.next_event(now_ms), self.finder.next_event_after(now_ms))
            await self._wait_for(self._changed, due_ms)

    async def _run_user_code(self) -> None:
        """Most of it takes no time."""
        hang, self.hangs_for_s = self.hangs_for_s, 0.0
        world = self._world
        if hang:
            world.note(self.name, f"hangs for {hang:.3f} s")
            await asyncio.sleep(hang)
        elif world.chance(world.faults.slow_callback):
            await asyncio.sleep(world.random.uniform(0, 3.0))
        await self._thaw()

    # ------------------------------------------------------------ the thread that polls

    async def _poll_for_ever(self) -> None:
        self.membership.subscribe(self.habit.topics)
        while not self.is_closing:
            await self._thaw()
            try:
                await self._poll()
            except BusError as error:
                self._world.note(self.name, f"is told {error}")
                if error.code is ErrorCode.FENCED_INSTANCE_ID:
                    self._end()
                    return
                await asyncio.sleep(0.2)
        await self._close()

    async def _poll(self) -> None:
        world = self._world
        await self._work()
        await self._find_positions()
        if not self.membership.has_news():
            await self._process_records()
        until_ms = world.now_ms + world.random.choice((10, 200, world.random.uniform(0, 1_000)))
        await self._run_user_code()
        while world.now_ms < until_ms and not self.membership.has_work() and not self.is_closing:
            due_ms = min(until_ms, self.membership.next_event(world.now_ms), self.commits.next_event(world.now_ms))
            if due_ms <= world.now_ms:
                await asyncio.sleep(0.001)
                return
            await self._wait_for(self._changed, due_ms)

    async def _work(self) -> None:
        world = self._world
        self.membership.note_poll(world.now_ms)
        self._watch_topics()
        while True:
            work = self.membership.next_work(world.now_ms)
            if work is None:
                break
            await self._do(work, until_ms=world.now_ms + self.config.default_api_timeout_ms)
            world.check()
        if self.commits.take_auto_due(world.now_ms):
            self._commit(self._uncommitted(self.positions))
        self._take_outcomes()

    def _watch_topics(self) -> None:
        if self._world.now_ms >= self._look_at_ms and self.membership.led_topics():
            self._look_at_ms = self._world.now_ms + _METADATA_AGE_MS
            self.membership.note_partitions(self._count_partitions(self.membership.led_topics()))

    def _count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self._world.partition_counts[topic] for topic in topics}

    async def _do(self, work: Work, *, until_ms: float) -> None:
        self._world.note(self.name, "does", work)
        match work:
            case Revoke():
                await self._commit_before(work.partitions, until_ms)
                await self._give_up(work)
            case Lose():
                await self._give_up(work)
            case Lead():
                await self._lead(work)
            case Assign():
                self.positions = {partition: self.positions.get(partition) for partition in sorted(work.assigned)}
                self.commits.start_auto(self._world.now_ms)
                work.assignor.on_assignment(work.assigned, work.generation)
                await self._run_user_code()

    async def _give_up(self, work: Revoke | Lose) -> None:
        await self._run_user_code()
        for partition in work.partitions:
            del self.positions[partition]
        self.commits.forget(work.partitions)
        self.membership.done(work)

    async def _lead(self, work: Lead) -> None:
        await asyncio.sleep(self._world.delay())
        await self._thaw()
        if self._world.chance(self._world.faults.failed_metadata):
            self.membership.fail_lead(work, self._world.now_ms)
            return
        counts = self._count_partitions(work.topics)
        assignment = {} if work.is_kept else work.assignor.assign(counts, work.members)
        self._look_at_ms = self._world.now_ms + _METADATA_AGE_MS
        self.membership.lead(work, counts, assignment, self._world.now_ms)

    # ------------------------------------------------------------ offsets

    async def _find_positions(self) -> None:
        """Find positions like the fetcher in the polling thread: the offset that the group has committed, or the
        beginning."""
        missing = [partition for partition, position in self.positions.items() if position is None]
        if not missing:
            return
        await self._wait_until(self._is_coordinator_sought, self._world.now_ms + 1_000)
        address = self.finder.address
        if address is None:
            return
        request = GroupRequest(OffsetFetch(self._world.group_id, missing), address, 1_000)
        self._send(request)
        await self._wait_until(lambda: request in self._answers, self._world.now_ms + 1_500)
        answer = self._answers.pop(request, broken := BusError(ErrorCode.NETWORK_EXCEPTION, "none"))
        if isinstance(answer, BusError):
            if answer is not broken and answer.code in LOST_COORDINATOR:
                self.finder.mark_unknown(address, answer, self._world.now_ms)
            return
        for partition in missing:
            begin = answer[partition].offset if partition in answer else 0
            self.positions[partition] = begin
            self._world.note(self.name, f"begins {partition} at {begin}")

    def _is_coordinator_sought(self) -> bool:
        self.finder.find(self._world.now_ms)
        return self.finder.address is not None or self.finder.error is not None

    async def _process_records(self) -> None:
        """Half of the records are there, and what is read is processed, before the next poll commits it."""
        moved = False
        for partition, position in list(self.positions.items()):
            if position is not None and (count := self._world.records_there()):
                self._world.on_processed(self, partition, position, position + count)
                self.positions[partition] = position + count
                moved = True
        if moved and self.habit.commits == ASYNC:
            self._commit(self._uncommitted(self.positions))
        elif moved and self.habit.commits == SYNC:
            await self._commit_and_wait(self._uncommitted(self.positions), self._world.now_ms + 6_000)

    def _uncommitted(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(position)
            for partition in partitions
            if (position := self.positions.get(partition)) is not None
            and self.commits.committed.get(partition) != position
        }

    def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if offsets:
            now_ms = self._world.now_ms
            deadline_ms = now_ms + self.config.request_timeout_ms
            self.commits.add(
                Commit(offsets, asked_at_ms=now_ms, deadline_ms=deadline_ms, is_repeated=False, callback=None), now_ms
            )

    async def _commit_and_wait(self, offsets: dict[TopicPartition, OffsetAndMetadata], deadline_ms: float) -> None:
        now_ms = self._world.now_ms
        commit = Commit(offsets, asked_at_ms=now_ms, deadline_ms=deadline_ms, is_repeated=True, callback=None)
        self.commits.add(commit, now_ms)
        await self._wait_until(lambda: commit.is_done, deadline_ms)

    async def _commit_before(self, partitions: frozenset[TopicPartition], until_ms: float) -> None:
        offsets = self._uncommitted(sorted(partitions)) if self.habit.commits == AUTO else {}
        if offsets:
            await self._commit_and_wait(offsets, until_ms)
        else:
            await self._wait_until(self.commits.is_idle, until_ms)
        self._take_outcomes()

    def _take_outcomes(self) -> None:
        for commit in self.commits.take_done():
            if commit.error is not None and commit.error.retriable and self.habit.commits == AUTO:
                self.commits.hurry_auto(self._world.now_ms)

    # ------------------------------------------------------------ closing

    async def _close(self) -> None:
        deadline_ms = self._world.now_ms + 5_000
        owned = self.membership.owned
        if owned:
            await self._do(Revoke(owned) if self.membership.generation.id >= 0 else Lose(owned), until_ms=deadline_ms)
        request = self.membership.leave("closed", self._world.now_ms)
        if request is not None:
            await self._wait_until(lambda: request in self._answers, deadline_ms)
        self.membership.unsubscribe()
        self._end()


def loop_time(at_ms: float) -> float:
    """The first time of the loop at which so many milliseconds are over."""
    time = at_ms / 1000
    while time * 1000 < at_ms:
        time = math.nextafter(time, math.inf)
    return time
