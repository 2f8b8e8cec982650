"""Offset commits of one consumer: in order, one request at a time, in the name of the present generation.

A machine without threads, clock or I/O, beside `membership`. Guards two promises: commits take effect in the order in
which they were asked for, and an offset of a partition that is not this consumer's any more is never sent. What is
asked for while a request is under way gathers and goes as one request: the last offset of each partition. A commit
that waits for its outcome is repeated until it succeeds or its time is over; any other fails at the first error. For a
partition that the coordinator does not know it is repeated only while that may be news to the coordinator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bus.client.config.clients import ConsumerConfig
from bus.client.connection.group_requests import OffsetCommit, Offsets, commit_portions
from bus.client.connection.retrying import UNKNOWN_PARTITION_MS_MAX
from bus.client.group.link import LOST_COORDINATOR, CoordinatorFinder, GroupRequest
from bus.client.group.membership import Generation
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

CommitErrors = Mapping[TopicPartition, BusError]  # the partitions that were not committed
CommitCallback = Callable[[Offsets, BusError | None], object]


class Member(Protocol):
    """The member in whose name offsets are committed."""

    def commit_stamp(self) -> GroupMetadata | BusError: ...

    def may_commit(self, partition: TopicPartition) -> bool: ...

    def note_refusal(self, error: BusError, generation: Generation) -> None: ...


class Commit:
    """One call of the user's, and its outcome: `error` counts once it `is_done`. `left` are those of its offsets that
    are not committed: what is repeated must not take back what went with it and was asked for later."""

    __slots__ = ("asked_at_ms", "callback", "deadline_ms", "error", "is_done", "is_repeated", "left", "offsets")

    def __init__(
        self,
        offsets: Offsets,
        *,
        asked_at_ms: float,
        deadline_ms: float,
        is_repeated: bool,
        callback: CommitCallback | None,
    ) -> None:
        self.offsets = dict(offsets)
        self.left = dict(offsets)
        self.asked_at_ms = asked_at_ms
        self.deadline_ms = deadline_ms
        self.is_repeated = is_repeated
        self.callback = callback
        self.is_done = False
        self.error: BusError | None = None


class OffsetCommits:
    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: CoordinatorFinder,
        member: Member,
        *,
        send: Callable[[GroupRequest], None],
        backoff_ms: Callable[[int], float],
        on_latency: Callable[[float, float], None] = lambda latency_ms, now_ms: None,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._member = member
        self._send = send
        self._backoff_ms = backoff_ms
        self._on_latency = on_latency
        self._waiting: deque[Commit] = deque()
        self._sent: _Sent | None = None
        self._retry_at_ms = -math.inf
        self._failures = 0
        self._done: deque[Commit] = deque()
        # committed by this consumer, for the partitions that it reads now
        self.committed: dict[TopicPartition, int] = {}
        self.is_automatic = config.enable_auto_commit
        self.auto_at_ms = math.inf  # when the next automatic commit is due

    # ------------------------------------------------------------ asking

    def add(self, commit: Commit, now_ms: float) -> None:
        self._waiting.append(commit)
        self.advance(now_ms)

    def is_idle(self) -> bool:
        return self._sent is None and not self._waiting

    def has_done(self) -> bool:
        return bool(self._done)

    def take_done(self) -> list[Commit]:
        """Those whose outcome has not been told yet, in order."""
        done = list(self._done)
        self._done.clear()
        return done

    def abandon(self, error: BusError) -> None:
        """Nothing more is sent; what waits or is under way has `error` for its outcome."""
        left = [*(self._sent.commits if self._sent is not None else ()), *self._waiting]
        self._sent = None
        self._waiting.clear()
        for commit in left:
            self._settle(commit, error)

    # ------------------------------------------------------------ auto-commit

    def start_auto(self, now_ms: float) -> None:
        """Partitions were assigned: the interval starts again."""
        if self.is_automatic:
            self.auto_at_ms = now_ms + self._config.auto_commit_interval_ms

    def stop_auto(self) -> None:
        """From now on only what is asked for is committed."""
        self.is_automatic, self.auto_at_ms = False, math.inf

    def take_auto_due(self, now_ms: float) -> bool:
        """True if an automatic commit is due; the next one is due an interval later."""
        if now_ms < self.auto_at_ms:
            return False
        self.auto_at_ms = now_ms + self._config.auto_commit_interval_ms
        return True

    def hurry_auto(self, now_ms: float) -> None:
        """The last automatic commit failed for a while: the next one comes soon."""
        if self.is_automatic:
            self.auto_at_ms = min(self.auto_at_ms, now_ms + self._backoff_ms(0))

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """They are read by another member from now on."""
        for partition in partitions:
            self.committed.pop(partition, None)

    # ------------------------------------------------------------ time and answers

    def advance(self, now_ms: float) -> None:
        """Give up what is late, send what may be sent."""
        if self._sent is not None:
            if now_ms >= self._sent.deadline_ms:
                error = BusError(ErrorCode.REQUEST_TIMED_OUT, "the offset commit was not answered in time")
                self.on_answer(self._sent.request, error, now_ms)
            return
        for commit in [commit for commit in self._waiting if now_ms >= commit.deadline_ms]:
            self._waiting.remove(commit)
            self._settle(commit, BusError(ErrorCode.REQUEST_TIMED_OUT, "the offsets could not be committed in time"))
        if self._waiting and now_ms >= self._retry_at_ms:
            self._send_waiting(now_ms)

    def next_event(self, now_ms: float) -> float:
        """When `advance` may have more to do without any answer."""
        if self._sent is not None:
            return self._sent.deadline_ms
        if not self._waiting:
            return math.inf
        finding = self._coordinator.next_event() if self._coordinator.address is None else now_ms
        return min(max(now_ms, self._retry_at_ms, finding), min(commit.deadline_ms for commit in self._waiting))

    def _send_waiting(self, now_ms: float) -> None:
        stamp = self._member.commit_stamp()
        if isinstance(stamp, BusError):
            self.abandon(stamp)
            return
        if self._coordinator.address is None:
            self._coordinator.find(now_ms)
            if self._coordinator.error is not None:
                self.abandon(self._coordinator.error)
            return
        commits: list[Commit] = []
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        while self._waiting:
            commit = self._waiting.popleft()
            refusal = self._refusal(commit.left)
            if refusal is not None:
                self._settle(commit, refusal)
            else:
                commits.append(commit)
                offsets.update(commit.left)
        if commits:
            self._send_portions(self._coordinator.address, stamp, commits, deque(commit_portions(offsets)), {}, now_ms)

    def _send_portions(
        self,
        address: str | None,
        stamp: GroupMetadata,
        commits: list[Commit],
        left: deque[Offsets],
        errors: CommitErrors,
        now_ms: float,
    ) -> None:
        """The first of `left`; the next one follows its answer."""
        offsets = left.popleft()
        request = GroupRequest(OffsetCommit(stamp, offsets), address, self._config.request_timeout_ms)
        deadline_ms = now_ms + self._config.request_timeout_ms
        self._sent = _Sent(request, stamp, offsets, commits, left, errors, deadline_ms)
        self._send(request)

    def _refusal(self, offsets: Offsets) -> BusError | None:
        for partition in offsets:
            if not self._member.may_commit(partition):
                return not_assigned(partition)
        return None

    def on_answer(self, request: GroupRequest, answer: CommitErrors | BusError, now_ms: float) -> None:
        """To a request that this machine sent."""
        if self._sent is None or request is not self._sent.request:
            return
        sent, self._sent = self._sent, None
        found = dict.fromkeys(sent.offsets, answer) if isinstance(answer, BusError) else answer
        errors = {**sent.errors, **found}
        if sent.left:
            error = answer if isinstance(answer, BusError) else self._refusal(sent.left[0])
            if error is None:
                self._send_portions(request.address, sent.stamp, sent.commits, sent.left, errors, now_ms)
                return
            errors.update(dict.fromkeys((partition for portion in sent.left for partition in portion), error))
        generation, commits = Generation(sent.stamp.generation, sent.stamp.member_id), sent.commits
        for error in {error.code: error for error in errors.values()}.values():
            if error.code in LOST_COORDINATOR:
                self._coordinator.mark_unknown(request.address, error, now_ms)
            self._member.note_refusal(error, generation)
        again: list[Commit] = []
        for commit in commits:
            failures = [errors[partition] for partition in commit.left if partition in errors]
            self._note(commit, errors)
            if (
                failures
                and commit.is_repeated
                and all(_may_pass(error, now_ms - commit.asked_at_ms) for error in failures)
                and now_ms < commit.deadline_ms
            ):
                again.append(commit)
            else:
                self._on_latency(now_ms - commit.asked_at_ms, now_ms)
                self._settle(commit, next((e for e in failures if not e.retriable), next(iter(failures), None)))
        self._waiting.extendleft(reversed(again))
        self._failures = self._failures + 1 if again else 0
        self._retry_at_ms = now_ms + self._backoff_ms(self._failures - 1) if again else -math.inf
        self.advance(now_ms)

    def _note(self, commit: Commit, errors: CommitErrors) -> None:
        for partition in commit.left.keys() - errors.keys():
            self.committed[partition] = commit.left.pop(partition).offset

    def _settle(self, commit: Commit, error: BusError | None) -> None:
        commit.is_done, commit.error = True, error
        self._done.append(commit)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request under way: `offsets` of `commits` in `request`, `left` for the requests after it, and `errors` of the
    partitions in those before it."""

    request: GroupRequest
    stamp: GroupMetadata
    offsets: Offsets
    commits: list[Commit]
    left: deque[Offsets]
    errors: CommitErrors
    deadline_ms: float


def _may_pass(error: BusError, age_ms: float) -> bool:
    """`age_ms`: of the commit. A topic that was deleted, perhaps created again with fewer partitions, does not come
    back; Kafka's consumer does not repeat this error at all."""
    is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error.retriable and not (is_unknown and age_ms >= UNKNOWN_PARTITION_MS_MAX)


def not_assigned(partition: TopicPartition) -> BusError:
    return BusError(
        ErrorCode.ILLEGAL_GENERATION,
        f"{partition} is not assigned to this consumer: another member may have it, nothing was committed",
    )
