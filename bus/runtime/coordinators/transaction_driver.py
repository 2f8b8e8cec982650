"""What a coordinator of transactions has done in other places: votes, and the application of decisions.

Theory of operation. The rules say what they need as a notice, a task asks all who take part until each has answered,
and the answer goes back to the rules as a command. What cannot be told now (a leader is away, a partition is being
opened) is asked again, of the broker that leads then: a decision is carried out however long that takes. A partition
whose topic is deleted has done everything: the coordinator knew the topic when the partition was added, so if its
metadata have the topic no more, it is gone for ever. The task of a shard that closes, or whose transaction has gone on,
ends by itself; a shard that loads its transactions again has the rest done again, which is safe. Guards one promise:
for a transaction and a step there is one task at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bus.cluster_metadata.cluster import ClusterState
from bus.cluster_metadata.cluster_records import LEVEL_OF_ONE_PHASE
from bus.errors import ErrorCode, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, BrokerEndpoint, TopicPartition
from bus.runtime.tasks import TaskScope, together
from bus.runtime.transaction_calls import StepAnswer, StepKind, Stepped, StepRequest
from bus.transactions.requests import Finished, Resolved, TransactionCommand, Voted
from bus.transactions.state import (
    NO_SEQUENCE,
    ONE_PHASE_MAX,
    AppliedRows,
    TransactionGroup,
    TransactionPartition,
    VoteId,
)
from bus.transactions.steps import CollectVotes, Finish, Resolve, TransactionNotice

_log = logging.getLogger(__name__)

_RETRY_S_MIN = 0.05
_RETRY_S_MAX = 2.0
# A step that fails for so long is worth a line in the log.
_LOGGED_AFTER_TRIES = 8

_Key = tuple[str, int, type[TransactionNotice], VoteId | None]  # transactional id, number, step
AskBroker = Callable[[BrokerEndpoint, StepKind, StepRequest], Coroutine[Any, Any, StepAnswer | Refused]]


@dataclass(frozen=True, slots=True)
class _Work:
    """What a coordinator wants done. `is_wanted`: it still waits for it. `submit` takes the answer."""

    notice: TransactionNotice
    coordinator_partition: int
    is_wanted: Callable[[], bool]
    submit: Callable[[TransactionCommand], Awaitable[object]]

    @property
    def key(self) -> _Key:
        vote_id = self.notice.vote_id if isinstance(self.notice, CollectVotes) else None
        return self.notice.transactional_id, self.notice.number, type(self.notice), vote_id

    def __str__(self) -> str:
        return f"transaction {self.notice.number} of {self.notice.transactional_id}"


@dataclass(slots=True)
class _Left:
    """What has not answered yet, with what it is asked."""

    partitions: dict[TransactionPartition, tuple[StepKind, int]]
    groups: dict[TransactionGroup, StepKind]
    done: dict[TransactionPartition, Stepped] = field(default_factory=dict)
    groups_done: dict[TransactionGroup, Stepped] = field(default_factory=dict)
    gone: set[TransactionPartition] = field(default_factory=set)
    given_up: set[TransactionPartition] = field(default_factory=set)
    last_refusal: Refused | None = None

    def __bool__(self) -> bool:
        return bool(self.partitions or self.groups)


class TransactionDriver:
    """Carries out the steps of one broker's coordinators. `ask` a broker, this one too; `take_producer_id` gives one
    that was never given."""

    def __init__(
        self,
        *,
        cluster: Callable[[], ClusterState],
        ask: AskBroker,
        take_producer_id: Callable[[], Awaitable[int | Refused]],
        tasks: TaskScope,
    ) -> None:
        self._cluster = cluster
        self._ask = ask
        self._take_producer_id = take_producer_id
        self._tasks = tasks
        self._running: dict[_Key, asyncio.Task[None]] = {}
        self._again: dict[_Key, _Work] = {}  # asked for while it runs
        self._giving_up: set[_Key] = set()  # of what runs: what a partition refuses for ever is given up

    def begin(
        self,
        notice: TransactionNotice,
        *,
        coordinator_partition: int,
        is_wanted: Callable[[], bool],
        submit: Callable[[TransactionCommand], Awaitable[object]],
    ) -> None:
        """`is_wanted`: the coordinator still waits for it. `submit` takes the answer."""
        self._begin(_Work(notice, coordinator_partition, is_wanted, submit))

    def _begin(self, work: _Work) -> None:
        key = work.key
        may_give_up = isinstance(work.notice, Finish) and work.notice.may_give_up
        if may_give_up:
            self._giving_up.add(key)
        if key in self._running:
            if not may_give_up:  # what runs takes it up
                self._again[key] = work
            return

        async def run() -> None:
            try:
                await self._drive_until_taken(work)
            finally:
                del self._running[key]
                again = self._again.pop(key, None)
                if again is not None and work.is_wanted():
                    self._begin(again)  # takes up that things are given up, if it was asked for too late for this one
                else:
                    self._giving_up.discard(key)

        name = f"transaction/{work.notice.transactional_id}/{work.notice.number}"
        self._running[key] = self._tasks.start(run(), name)

    def stop(self) -> None:
        """Before the broker stops: its successor goes on."""
        self._again.clear()
        for task in self._running.values():
            task.cancel()

    async def _drive_until_taken(self, work: _Work) -> None:
        """Once more after an error that nothing expects, and if the coordinator does not take the answer: otherwise a
        decision would wait for the next load of its shard. All who take part can be asked again."""
        delay_s = _RETRY_S_MIN
        while True:
            try:
                command = await self._drive(work)
                taken = None if command is None else await work.submit(command)
                if not isinstance(taken, Refused) or not work.is_wanted():
                    return
                _log.warning("%s: retrying: %s", work, taken.message)
            except Exception:
                _log.exception("%s: a step failed, retrying", work)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_S_MAX)

    async def _drive(self, work: _Work) -> TransactionCommand | None:
        """The answer; None: it is not wanted any more."""
        match work.notice:
            case CollectVotes() as notice:
                return await self._collect(work, notice)
            case Finish() as notice:
                return await self._finish(work, notice)
            case Resolve() as notice:
                return await self._resolve(work, notice)

    # ------------------------------------------------------------------ the steps

    async def _collect(self, work: _Work, notice: CollectVotes) -> Voted | None:
        named = notice.last_sequences
        kind = StepKind.COMMIT if notice.is_one_phase else StepKind.VOTE
        left = _Left(
            {each: (kind, named.get(each.name, NO_SEQUENCE)) for each in notice.partitions},
            dict.fromkeys(notice.groups, StepKind.VOTE),
        )
        if not await self._ask_all(left, work):
            return None
        lacking = [group.group_id for group, stepped in left.groups_done.items() if not stepped.has_pending]
        refused = None
        if lacking:
            found = f"group {min(lacking)} has no offsets of it"
            refused = Refused(ErrorCode.TRANSACTION_ABORTABLE, f"{notice.transactional_id}: {found}")
        votes = {partition: stepped.last_sequence for partition, stepped in left.done.items()}
        committed = [each for each in left.done.values() if notice.is_one_phase and each.version >= 0]
        rows = AppliedRows(committed[0].version, committed[0].base_offset) if committed else None
        gone = frozenset(left.gone)
        taken_number = max((stepped.number for stepped in left.done.values()), default=-1)
        return Voted(notice.transactional_id, notice.number, notice.vote_id, votes, gone, refused, rows, taken_number)

    async def _finish(self, work: _Work, notice: Finish) -> Finished | None:
        def kind(last_sequence: int) -> StepKind:
            return StepKind.APPLY if notice.is_commit and last_sequence != NO_SEQUENCE else StepKind.DROP

        left = _Left(
            {each: (kind(last_sequence), last_sequence) for each, last_sequence in notice.partitions.items()},
            dict.fromkeys(notice.groups, StepKind.APPLY if notice.is_commit else StepKind.DROP),
        )
        if not await self._ask_all(left, work):
            return None
        new_producer_id = await self._new_producer_id(work.is_wanted) if notice.needs_producer_id else None
        results = {
            partition: AppliedRows(stepped.version, stepped.base_offset)
            for partition, stepped in left.done.items()
            if notice.is_commit and notice.partitions[partition] != NO_SEQUENCE
        }
        return Finished(notice.transactional_id, notice.number, results, new_producer_id, frozenset(left.given_up))

    async def _resolve(self, work: _Work, notice: Resolve) -> Resolved | None:
        if self._cluster().level < LEVEL_OF_ONE_PHASE:  # so there is nothing behind the log
            return Resolved(notice.transactional_id, notice.number, notice.number)
        last_number, rows = notice.number, None
        while True:
            unknown = replace(
                notice,
                number=last_number + 1,
                producer_epoch=notice.producer_epoch + last_number - notice.number,
            )
            left = _Left({notice.partition: (StepKind.RESOLVE, NO_SEQUENCE)}, {})
            if not await self._ask_all(left, work, about=unknown):
                return None
            if left.gone:
                return Resolved(notice.transactional_id, notice.number, None)
            stepped = left.done[notice.partition]
            is_ours = stepped.number - notice.number <= ONE_PHASE_MAX  # else it is of an earlier life of the id
            if stepped.number < unknown.number or not is_ours:
                return Resolved(notice.transactional_id, notice.number, last_number, rows)
            last_number, rows = stepped.number, AppliedRows(stepped.version, stepped.base_offset)

    async def _new_producer_id(self, is_wanted: Callable[[], bool]) -> int | None:
        delay_s = _RETRY_S_MIN
        while is_wanted():
            taken = await self._take_producer_id()
            if not isinstance(taken, Refused):
                return taken
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_S_MAX)
        return None

    # ------------------------------------------------------------------ asking

    async def _ask_all(self, left: _Left, work: _Work, about: TransactionNotice | None = None) -> bool:
        """Until every one has answered; False: the answers are not wanted any more. `about`: with other numbers than
        those of the notice."""
        delay_s, tries = _RETRY_S_MIN, 0
        while True:
            self._leave_out_gone(left)
            if not left:
                return True
            if not work.is_wanted():
                return False
            await self._ask_once(left, work, work.notice if about is None else about)
            tries += 1
            if not left:
                return True
            if tries % _LOGGED_AFTER_TRIES == 0 and left.last_refusal is not None:
                _log.warning(
                    "%s waits for %d partitions and %d groups: %s",
                    work,
                    len(left.partitions),
                    len(left.groups),
                    left.last_refusal.message,
                )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_S_MAX)

    def _leave_out_gone(self, left: _Left) -> None:
        known = self._cluster().topic_names
        for partition in [each for each in left.partitions if each.topic_id not in known]:
            del left.partitions[partition]
            left.gone.add(partition)

    async def _ask_once(self, left: _Left, work: _Work, notice: TransactionNotice) -> None:
        requests: list[tuple[BrokerEndpoint, StepKind, StepRequest]] = []
        for (leader, kind), (partitions, groups) in self._by_leader(left).items():
            request = StepRequest(
                notice.transactional_id,
                notice.number,
                notice.producer_id,
                notice.producer_epoch,
                work.coordinator_partition,
                partitions,
                groups,
            )
            requests.append((leader, kind, request))
        answers = await together([self._ask(*each) for each in requests])
        for (_, kind, request), answer in zip(requests, answers, strict=True):
            _take(left, request, answer)
            if kind is StepKind.APPLY and work.key in self._giving_up and not isinstance(answer, Refused):
                self._give_up(left, request, answer, work)

    def _give_up(self, left: _Left, request: StepRequest, answer: StepAnswer, work: _Work) -> None:
        """An operator has seen that this is not going to be."""
        for (partition, _), stepped in zip(request.partitions, answer.partitions, strict=True):
            if isinstance(stepped, Refused) and stepped.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.error("%s: its rows in %s are given up by an operator: %s", work, partition, stepped.message)
                del left.partitions[partition]
                left.given_up.add(partition)

    def _by_leader(
        self, left: _Left
    ) -> Mapping[
        tuple[BrokerEndpoint, StepKind], tuple[list[tuple[TransactionPartition, int]], list[TransactionGroup]]
    ]:
        """Those without a leader that can be reached are asked later."""
        found: dict[
            tuple[BrokerEndpoint, StepKind], tuple[list[tuple[TransactionPartition, int]], list[TransactionGroup]]
        ] = {}
        for partition, (kind, last_sequence) in left.partitions.items():
            leader = self._leader(partition.name)
            if isinstance(leader, Refused):
                left.last_refusal = leader
            else:
                found.setdefault((leader, kind), ([], []))[0].append((partition, last_sequence))
        for group, kind in left.groups.items():
            leader = self._leader(TopicPartition(CONSUMER_OFFSETS_TOPIC, group.offsets_partition))
            if isinstance(leader, Refused):
                left.last_refusal = leader
            else:
                found.setdefault((leader, kind), ([], []))[1].append(group)
        return found

    def _leader(self, name: TopicPartition) -> BrokerEndpoint | Refused:
        cluster = self._cluster()
        leadership = cluster.leadership(name)
        leader = None if leadership is None else cluster.brokers.get(leadership.leader_id)
        if leader is None or leader.is_fenced:
            return Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader that can be reached")
        return leader.endpoint


def _take(left: _Left, request: StepRequest, answer: StepAnswer | Refused) -> None:
    if isinstance(answer, Refused):
        left.last_refusal = answer
        return
    for (partition, _), stepped in zip(request.partitions, answer.partitions, strict=True):
        if isinstance(stepped, Refused):
            left.last_refusal = stepped
        else:
            del left.partitions[partition]
            left.done[partition] = stepped
    for group, stepped in zip(request.groups, answer.groups, strict=True):
        if isinstance(stepped, Refused):
            left.last_refusal = stepped
        else:
            del left.groups[group]
            left.groups_done[group] = stepped
