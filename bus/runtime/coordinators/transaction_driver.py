"""The work that a transaction coordinator requests elsewhere: votes, and the application of decisions.

Theory of operation. The rules state what they need as a notice; a task asks all participants until each has answered,
and submits the answers to the rules as a command. A participant that cannot answer now (a leader is away, a partition
is being opened) is asked again, at the broker that leads then: a decision is carried out however long that takes. A
partition whose topic is deleted counts as done: the coordinator knew the topic when the partition was added, so a topic
that its metadata lack is gone forever. A task ends by itself when its shard closes or its transaction has moved on; a
shard that loads its transactions again repeats the remaining work, which is safe. Guards one promise: each step of a
transaction has one task at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bus.cluster_metadata.cluster_state import LEVEL_OF_ONE_PHASE, ClusterState
from bus.consumer_groups import requests as group_requests
from bus.errors import ErrorCode, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, BrokerEndpoint, TopicPartition
from bus.ports import AppliedTransaction, StagingKey
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.metadata.peers import StepAnswer, StepKind, Stepped, StepRequest
from bus.runtime.partitions.partition_host import PartitionHost
from bus.runtime.partitions.partition_queue import TransactionWritten
from bus.runtime.tasks import TaskScope, together
from bus.transactions.changes import CollectVotes, Finish, Resolve, TransactionNotice
from bus.transactions.requests import Finished, Resolved, TransactionCommand, Voted
from bus.transactions.state import (
    NO_SEQUENCE,
    ONE_PHASE_MAX,
    AppliedRows,
    TransactionGroup,
    TransactionPartition,
    VoteId,
)

_log = logging.getLogger(__name__)

_RETRY_S_MIN = 0.05
_RETRY_S_MAX = 2.0
# A step that fails for so long is worth a line in the log.
_LOGGED_AFTER_TRIES = 8

_Key = tuple[str, int, type[TransactionNotice], VoteId | None]  # transactional id, number, step
AskBroker = Callable[[BrokerEndpoint, StepKind, StepRequest], Coroutine[Any, Any, StepAnswer | Refused]]


@dataclass(frozen=True, slots=True)
class _Work:
    """Work that a coordinator requests. `is_wanted`: the coordinator still waits for it. `submit` takes the answer."""

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
class _Remaining:
    """The participants that have not answered yet, with the step requested of each, and the answers of the others."""

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
        self._giving_up: set[_Key] = set()  # running keys for which a partition's permanent refusal counts as done

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
            if not may_give_up:  # the running task sees `_giving_up`
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
        """Stop, before the broker does: its successor continues."""
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
        """Return the answer; None: it is no longer wanted."""
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
        remaining = _Remaining(
            {each: (kind, named.get(each.name, NO_SEQUENCE)) for each in notice.partitions},
            dict.fromkeys(notice.groups, StepKind.VOTE),
        )
        if not await self._ask_all(remaining, work):
            return None
        lacking = [group.group_id for group, stepped in remaining.groups_done.items() if not stepped.has_pending]
        refused = None
        if lacking:
            found = f"group {min(lacking)} has no offsets of it"
            refused = Refused(ErrorCode.TRANSACTION_ABORTABLE, f"{notice.transactional_id}: {found}")
        votes = {partition: stepped.last_sequence for partition, stepped in remaining.done.items()}
        committed = [each for each in remaining.done.values() if notice.is_one_phase and each.version >= 0]
        rows = AppliedRows(committed[0].version, committed[0].base_offset) if committed else None
        gone = frozenset(remaining.gone)
        taken_number = max((stepped.number for stepped in remaining.done.values()), default=-1)
        return Voted(notice.transactional_id, notice.number, notice.vote_id, votes, gone, refused, rows, taken_number)

    async def _finish(self, work: _Work, notice: Finish) -> Finished | None:
        def kind(last_sequence: int) -> StepKind:
            return StepKind.APPLY if notice.is_commit and last_sequence != NO_SEQUENCE else StepKind.DROP

        remaining = _Remaining(
            {each: (kind(last_sequence), last_sequence) for each, last_sequence in notice.partitions.items()},
            dict.fromkeys(notice.groups, StepKind.APPLY if notice.is_commit else StepKind.DROP),
        )
        if not await self._ask_all(remaining, work):
            return None
        new_producer_id = await self._new_producer_id(work.is_wanted) if notice.needs_producer_id else None
        results = {
            partition: AppliedRows(stepped.version, stepped.base_offset)
            for partition, stepped in remaining.done.items()
            if notice.is_commit and notice.partitions[partition] != NO_SEQUENCE
        }
        return Finished(notice.transactional_id, notice.number, results, new_producer_id, frozenset(remaining.given_up))

    async def _resolve(self, work: _Work, notice: Resolve) -> Resolved | None:
        if self._cluster().level < LEVEL_OF_ONE_PHASE:  # such a cluster has no commit behind the log
            return Resolved(notice.transactional_id, notice.number, notice.number)
        last_number, rows = notice.number, None
        while True:
            unknown = replace(
                notice,
                number=last_number + 1,
                producer_epoch=notice.producer_epoch + last_number - notice.number,
            )
            remaining = _Remaining({notice.partition: (StepKind.RESOLVE, NO_SEQUENCE)}, {})
            if not await self._ask_all(remaining, work, about=unknown):
                return None
            if remaining.gone:
                return Resolved(notice.transactional_id, notice.number, None)
            stepped = remaining.done[notice.partition]
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

    async def _ask_all(self, remaining: _Remaining, work: _Work, about: TransactionNotice | None = None) -> bool:
        """Ask until every participant has answered; False: the answers are no longer wanted. `about`: other numbers
        than those of the notice."""
        delay_s, tries = _RETRY_S_MIN, 0
        while True:
            self._leave_out_gone(remaining)
            if not remaining:
                return True
            if not work.is_wanted():
                return False
            await self._ask_once(remaining, work, work.notice if about is None else about)
            tries += 1
            if not remaining:
                return True
            if tries % _LOGGED_AFTER_TRIES == 0 and remaining.last_refusal is not None:
                _log.warning(
                    "%s waits for %d partitions and %d groups: %s",
                    work,
                    len(remaining.partitions),
                    len(remaining.groups),
                    remaining.last_refusal.message,
                )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_S_MAX)

    def _leave_out_gone(self, remaining: _Remaining) -> None:
        known = self._cluster().topic_names
        for partition in [each for each in remaining.partitions if each.topic_id not in known]:
            del remaining.partitions[partition]
            remaining.gone.add(partition)

    async def _ask_once(self, remaining: _Remaining, work: _Work, notice: TransactionNotice) -> None:
        requests: list[tuple[BrokerEndpoint, StepKind, StepRequest]] = []
        for (leader, kind), (partitions, groups) in self._by_leader(remaining).items():
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
            _take(remaining, request, answer)
            if kind is StepKind.APPLY and work.key in self._giving_up and not isinstance(answer, Refused):
                self._give_up(remaining, request, answer, work)

    def _give_up(self, remaining: _Remaining, request: StepRequest, answer: StepAnswer, work: _Work) -> None:
        """An operator has seen that this is not going to be."""
        for (partition, _), stepped in zip(request.partitions, answer.partitions, strict=True):
            if isinstance(stepped, Refused) and stepped.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.error("%s: its rows in %s are given up by an operator: %s", work, partition, stepped.message)
                del remaining.partitions[partition]
                remaining.given_up.add(partition)

    def _by_leader(
        self, remaining: _Remaining
    ) -> Mapping[
        tuple[BrokerEndpoint, StepKind], tuple[list[tuple[TransactionPartition, int]], list[TransactionGroup]]
    ]:
        """Those without a leader that can be reached are asked later."""
        found: dict[
            tuple[BrokerEndpoint, StepKind], tuple[list[tuple[TransactionPartition, int]], list[TransactionGroup]]
        ] = {}
        for partition, (kind, last_sequence) in remaining.partitions.items():
            leader = self._leader(partition.name)
            if isinstance(leader, Refused):
                remaining.last_refusal = leader
            else:
                found.setdefault((leader, kind), ([], []))[0].append((partition, last_sequence))
        for group, kind in remaining.groups.items():
            leader = self._leader(TopicPartition(CONSUMER_OFFSETS_TOPIC, group.offsets_partition))
            if isinstance(leader, Refused):
                remaining.last_refusal = leader
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


def _take(remaining: _Remaining, request: StepRequest, answer: StepAnswer | Refused) -> None:
    if isinstance(answer, Refused):
        remaining.last_refusal = answer
        return
    for (partition, _), stepped in zip(request.partitions, answer.partitions, strict=True):
        if isinstance(stepped, Refused):
            remaining.last_refusal = stepped
        else:
            del remaining.partitions[partition]
            remaining.done[partition] = stepped
    for group, stepped in zip(request.groups, answer.groups, strict=True):
        if isinstance(stepped, Refused):
            remaining.last_refusal = stepped
        else:
            del remaining.groups[group]
            remaining.groups_done[group] = stepped


NOWHERE = TransactionWritten(-1, -1)


class TransactionParticipants:
    """The partitions and groups of this broker as the coordinators of transactions ask them.

    Each is asked by itself, all at once, so a busy one holds up no other. A step that has begun runs to its end even
    if the coordinator that asked goes away; only a vote, which changes nothing that lasts, is cancelled with its
    call. The coordinator asks again, and every step is safe to repeat.
    """

    def __init__(self, host: PartitionHost, groups: GroupCoordinator, tasks: TaskScope) -> None:
        self._host = host
        self._groups = groups
        self._tasks = tasks

    async def step(self, kind: StepKind, request: StepRequest) -> StepAnswer:
        """An answer for each; the refusals of those that are led elsewhere say so."""
        if kind is StepKind.VOTE:
            return await self._step(kind, request)
        return await self._tasks.finish(self._step(kind, request), f"transaction/{kind.value}")

    async def _step(self, kind: StepKind, request: StepRequest) -> StepAnswer:
        partitions = [self._step_partition(kind, request, partition, last) for partition, last in request.partitions]
        groups = [self._step_group(kind, request, group) for group in request.groups]
        answers = await together([*partitions, *groups])
        return StepAnswer(answers[: len(partitions)], answers[len(partitions) :])

    async def _step_partition(
        self, kind: StepKind, request: StepRequest, name: TransactionPartition, last_sequence: int
    ) -> Stepped | Refused:
        partition = self._host.find(name.name, name.topic_id)
        if isinstance(partition, Refused):
            return partition
        key = StagingKey(request.coordinator_partition, request.producer_id, request.producer_epoch)
        match kind:
            case StepKind.VOTE:
                taken_number = partition.transactions.find_taken_number(_transaction_of(request))
                if taken_number >= 0 and last_sequence < 0 and not request.heeds_marks:
                    # A coordinator that ignores marks takes the voted part for the whole transaction, and would commit
                    # nothing.
                    message = f"{name}: transaction {taken_number} is of an earlier life of the id"
                    return Refused(ErrorCode.TRANSACTION_ABORTABLE, message)
                if taken_number >= 0:
                    return Stepped(number=taken_number)
                voted = await partition.transactions.vote(key, last_sequence)
                return voted if isinstance(voted, Refused) else Stepped(last_sequence=voted)
            case StepKind.COMMIT:
                decided = await partition.transactions.commit(key, _transaction_of(request), last_sequence)
                if isinstance(decided, Refused):
                    return decided
                rows = decided.rows or NOWHERE
                return Stepped(decided.last_sequence, rows.version, rows.base_offset, number=decided.taken_number)
            case StepKind.APPLY:
                written = await partition.transactions.apply(key, _transaction_of(request), last_sequence)
                if isinstance(written, Refused):
                    return written
                return Stepped(version=written.version, base_offset=written.base_offset)
            case StepKind.DROP:
                return await partition.transactions.drop(key) or Stepped()
            case StepKind.RESOLVE:
                resolved = await partition.transactions.resolve(_transaction_of(request))
                if isinstance(resolved, Refused):
                    return resolved
                rows = resolved.rows or NOWHERE
                return Stepped(number=resolved.last_number, version=rows.version, base_offset=rows.base_offset)

    async def _step_group(self, kind: StepKind, request: StepRequest, group: TransactionGroup) -> Stepped | Refused:
        key = group_requests.TransactionKey(request.producer_id, request.producer_epoch)
        command: group_requests.VoteOffsets | group_requests.ApplyOffsets | group_requests.DropOffsets
        match kind:
            case StepKind.VOTE:
                command = group_requests.VoteOffsets(group.group_id, key)
            case StepKind.APPLY:
                command = group_requests.ApplyOffsets(group.group_id, key)
            case StepKind.DROP:
                command = group_requests.DropOffsets(group.group_id, key)
            case StepKind.COMMIT | StepKind.RESOLVE:
                return Refused(ErrorCode.INVALID_REQUEST, f"expected partitions to {kind.value}, found {group}")
        answer = await self._groups.submit(command)
        match answer:
            case group_requests.OffsetsVoted(has_pending):
                return Stepped(has_pending=has_pending)
            case group_requests.TxnOffsetsSettled():
                return Stepped()
            case Refused():
                return answer
            case _:
                return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group.group_id}: found the answer {answer}")


def _transaction_of(request: StepRequest) -> AppliedTransaction:
    return AppliedTransaction(request.transactional_id, request.number, request.producer_id, request.producer_epoch)
