"""A consumer's membership in its group: combines `coordinator`, `membership` and `offset_commits`.

Joining, callbacks and the leader's assignment happen in the thread that polls, in `work`; heartbeats go on beside it,
by `link`. Guards two promises: the lock, which is the fetcher's, is never held while a user's code runs or a call
is waited for; and what a callback raises reaches the user, after the rebalance that it interrupted has gone its way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import get_ident, main_thread
from typing import Any

from bus.client.assignors import assignors_of
from bus.client.config.clients import ConsumerConfig
from bus.client.connection.cluster import Cluster
from bus.client.connection.connections import closed_client
from bus.client.connection.group_requests import (
    FetchedOffsets,
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    Offsets,
    SyncGroup,
    decode_group_answer,
    encode_group_call,
)
from bus.client.connection.retrying import monotonic_ms, portions
from bus.client.consumer.fetcher import Fetcher
from bus.client.consumer.metrics import ConsumerMetrics
from bus.client.group.group_topics import GroupTopics, RebalanceCallback, Subscription
from bus.client.group.link import LOST_COORDINATOR, CoordinatorFinder, GroupLink, GroupRequest
from bus.client.group.membership import Assign, Generation, Lead, Lose, Membership, Revoke
from bus.client.group.offset_commits import Commit, CommitCallback, OffsetCommits, not_assigned
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

_INTERRUPTED_LEAVE_MS = 1_000
_AUTO_COMMIT_WAIT_MS = 100  # at least, within one poll: an interval of 0 must not make it spin


def _shell_error() -> int:
    """Identify the error that an interactive shell, such as a notebook's, has shown last. Another one than at the last
    poll of the main thread: the cell that polled is over, by an interrupt or another error. A program has none before
    its end."""
    return id(getattr(sys, "last_value", None))  # not the error itself, whose frames hold the consumer


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """Before these are given up. `commit` None: nothing is to be committed, what was asked for before is waited for."""

    partitions: frozenset[TopicPartition]
    commit: Commit | None
    until_ms: float


class GroupClient:
    """`on_change`, set by its owner, is called whenever the assigned partitions become other ones; `on_commit` for
    offsets that were committed. Must not refer to the consumer: that may be forgotten."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        fetcher: Fetcher,
        metrics: ConsumerMetrics,
        *,
        on_commit: Callable[[Offsets], None],
    ) -> None:
        assert config.group_id is not None, "a member has a group"
        self._cluster = cluster
        self._config = config
        self._fetcher = fetcher
        self.on_change: Callable[[], None] = lambda: None
        self._on_commit = on_commit
        self._lock = fetcher.lock
        self._changed = fetcher.changed
        self._link = GroupLink(cluster, fetcher.changed, fetcher.lock, self)
        self._last_left: GroupRequest | None = None
        self.group_id = config.group_id
        self.subscription: Subscription | None = None
        self._metrics = metrics
        self._sent_at_ms: dict[GroupRequest, float] = {}  # heartbeats, joins and syncs under way
        self._joining_since_ms: float | None = None
        self._raised: BaseException | None = None  # raised by a callback
        self._last_commit: _LastCommit | None = None  # the commit before a revocation that is under way
        self._shell_error: int | None = None  # that of the last poll, if the main thread made it
        backoff_ms = cluster.backoff.ms
        self.coordinator = CoordinatorFinder(
            config.group_id,
            config.request_timeout_ms,
            send=self._send,
            backoff_ms=backoff_ms,
            may_retry=cluster.may_retry,
            on_lost=self._link.cut_session,
        )
        assignors = assignors_of(config.partition_assignment_strategy)
        self.membership = Membership(config, assignors, self.coordinator, send=self._send, backoff_ms=backoff_ms)
        self._topics = GroupTopics(
            cluster,
            self.membership,
            fetcher.changed,
            metadata_max_age_ms=config.metadata_max_age_ms,
            may_create=config.allow_auto_create_topics,
        )
        self.commits = OffsetCommits(
            config,
            self.coordinator,
            self,
            send=self._send,
            backoff_ms=backoff_ms,
            on_latency=metrics.record_commit,
        )
        metrics.add_gauge("last-heartbeat-seconds-ago", self.membership.seconds_since_heartbeat)

    # ------------------------------------------------------------ as the member that commits; the lock is held

    def commit_stamp(self) -> GroupMetadata | BusError:
        return GroupMetadata(self.group_id) if self.subscription is None else self.membership.commit_stamp()

    def may_commit(self, partition: TopicPartition) -> bool:
        return self.subscription is None or partition in self.membership.owned

    def note_refusal(self, error: BusError, generation: Generation) -> None:
        if self.subscription is not None:
            self.membership.note_refusal(error, generation)

    # ------------------------------------------------------------ for transactions that commit offsets

    def transaction_stamp(self, partitions: Iterable[TopicPartition]) -> GroupMetadata:
        """Return the member in whose name a transaction commits offsets of these partitions, which are this member's.
        Raises `BusError`."""
        with self._lock:
            stamp = self.commit_stamp()
            lost = [partition for partition in partitions if not self.may_commit(partition)]
        if isinstance(stamp, BusError):
            raise stamp
        if lost:
            raise not_assigned(lost[0])
        return stamp

    def note_stamp_refused(self, error: BusError, stamp: GroupMetadata) -> None:
        """The coordinator refused it: the membership need not wait for its next heartbeat to know."""
        with self._lock:
            self.note_refusal(error, Generation(stamp.generation, stamp.member_id))
        self._link.deliver()

    # ------------------------------------------------------------ as the machines behind the link; the lock is held

    def _send(self, request: GroupRequest) -> None:
        now_ms = monotonic_ms()
        if isinstance(request.call, (Heartbeat, JoinGroup, SyncGroup)):
            self._sent_at_ms[request] = now_ms
        if isinstance(request.call, JoinGroup) and self._joining_since_ms is None:
            self._joining_since_ms = now_ms
        self._link.send(request)

    def _measure(self, request: GroupRequest, answer: Any, now_ms: float) -> None:
        sent_at_ms = self._sent_at_ms.pop(request, None)
        if sent_at_ms is None:
            return
        self._metrics.record_group_call(request.method, now_ms - sent_at_ms, now_ms)
        if isinstance(answer, BusError) and not isinstance(request.call, Heartbeat):
            self._metrics.record_rebalance(None, now_ms)

    def take_answer(self, request: GroupRequest, answer: Any, now_ms: float) -> None:
        self._measure(request, answer, now_ms)
        match request.call:
            case FindCoordinator():
                self.coordinator.on_answer(request, answer, now_ms)
            case OffsetCommit():
                self.commits.on_answer(request, answer, now_ms)
            case LeaveGroup():
                self._last_left = request
            case _:
                self.membership.on_answer(request, answer, now_ms)
        self.commits.advance(now_ms)

    def take_notice(self) -> None:
        self.membership.heartbeat_now()

    def tick(self, now_ms: float) -> float:
        self.commits.advance(now_ms)
        if self._shell_error not in (None, _shell_error()):
            self.membership.note_left_behind(now_ms)
        due_ms = min(self.membership.tick(now_ms), self.commits.next_event(now_ms))
        if self.membership.has_news():
            self._changed.notify_all()  # a waiting poll has to rejoin
        return due_ms

    # ------------------------------------------------------------ subscribing

    def subscribe(self, subscription: Subscription) -> None:
        """The next poll joins. What is assigned stays so until the group has rebalanced."""
        with self._lock:
            self.subscription = subscription
            self._topics.look_anew()
            if subscription.pattern is None:
                self.membership.subscribe(subscription.topics)

    def start_processing(
        self, on_assigned: RebalanceCallback, on_revoked: RebalanceCallback, on_lost: RebalanceCallback
    ) -> None:
        """From now on these come before the callbacks of the subscription, and nothing is committed by itself."""
        with self._lock:
            self.commits.stop_auto()
            if self.subscription is not None:
                self.subscription = self.subscription.with_callbacks_before(on_assigned, on_revoked, on_lost)

    def unsubscribe(self, deadline_ms: float, reason: str) -> None:
        """Give up what is assigned, as at a revocation, and leave the group; waits until the coordinator knows."""
        if self.subscription is None:
            return
        with self._lock:
            owned, is_member = self.membership.owned, self.membership.generation.id >= 0
        if owned and is_member:
            self._begin_last_commit(owned, deadline_ms)
            self._end_last_commit(deadline_ms)
        if owned:
            self._give_up(Revoke(owned) if is_member else Lose(owned))
        with self._lock:
            request = self.membership.leave(reason, monotonic_ms())
        self._link.deliver()
        with self._lock:
            if request is not None:
                left_ms = max(0.0, deadline_ms - monotonic_ms())
                self._changed.wait_for(lambda: self._last_left is request, left_ms / 1000)
            self.membership.unsubscribe()
            self.subscription = None
            self._reassign(())
        self._raise_what_callbacks_raised()

    # ------------------------------------------------------------ polling

    def between_records(self) -> bool:
        """Do the group's work between two records of an iteration; cheap unless there is some. False: there is more,
        and `work` has to continue."""
        now_ms = monotonic_ms()
        if now_ms >= self.commits.auto_at_ms or (self.subscription is not None and self.membership.has_news()):
            return self.work(now_ms)
        self.membership.note_poll(now_ms)
        return True

    def is_pressed(self) -> bool:
        """`work` has something to do that came after its last call. The lock is held."""
        if self._link.has_outgoing or self.commits.has_done():
            return True
        if self.subscription is None:
            return False
        return self._topics.is_pressed() or (self.membership.has_work() and not self._topics.is_leading)

    def work(self, deadline_ms: float) -> bool:
        """Do what the group needs before records are returned: rejoin, callbacks, commits. False: there is more, and a
        later call continues. Waits, until `deadline_ms`, for the commit before a revocation; not for brokers otherwise,
        nor for other members. Raises `BusError`, and what callbacks raise."""
        now_ms = monotonic_ms()
        self.membership.note_poll(now_ms)
        self._shell_error = _shell_error() if get_ident() == main_thread().ident else None
        is_through = True
        if self.subscription is not None:
            self._topics.watch(self.subscription, now_ms)
            self._link.start_keeper(f"bus-heartbeat-{self.group_id}")
            is_through = self._do_all(deadline_ms)
        if is_through:
            self._auto_commit()
        self.tell_outcomes()
        self._raise_what_callbacks_raised()
        return is_through

    def next_event(self, now_ms: float) -> float:
        """When `work` may have more to do without any answer. The lock is held."""
        found = min(self.commits.next_event(now_ms), max(self.commits.auto_at_ms, now_ms + _AUTO_COMMIT_WAIT_MS))
        if self.subscription is not None:
            often_ms = self._config.max_poll_interval_ms / 3  # a thread that waits in poll counts as polling
            found = min(found, self.membership.next_event(now_ms), now_ms + often_ms, self._topics.next_look())
        return found

    def _do_all(self, deadline_ms: float) -> bool:
        while True:
            with self._lock:
                work = self.membership.next_work(monotonic_ms())
            self._link.deliver()
            match work:
                case None:
                    return True
                case Lead():
                    self._topics.lead(work)
                    if self._topics.is_leading:
                        return True  # partitions that stay assigned are read meanwhile
                case Revoke():
                    self._begin_last_commit(work.partitions, monotonic_ms() + self._commit_timeout_ms())
                    if not self._end_last_commit(deadline_ms):
                        return False
                    self._give_up(work)
                case Lose():
                    self._last_commit = None
                    self._give_up(work)
                case Assign():
                    self._assign(work)

    def _give_up(self, work: Revoke | Lose) -> None:
        listener = self.subscription
        if isinstance(work, Revoke):
            logger.info("group %r: revoked %s", self.group_id, _names(work.partitions))
            callback = listener.on_revoked if listener else None
        else:
            logger.warning("group %r: lost %s", self.group_id, _names(work.partitions))
            callback = (listener.on_lost or listener.on_revoked) if listener else None
        try:
            self._call_timed("revoked" if isinstance(work, Revoke) else "lost", callback, work.partitions)
        finally:
            with self._lock:
                self._reassign(self._fetcher.assigned.keys() - work.partitions)
                self.commits.forget(work.partitions)
                self.membership.done(work)

    def _assign(self, work: Assign) -> None:
        added = _names(work.added)
        logger.info("group %r, generation %d: assigned %s", self.group_id, work.generation, added)
        with self._lock:
            self._reassign(work.assigned)
            now_ms = monotonic_ms()
            self.commits.start_auto(now_ms)
            since_ms, self._joining_since_ms = self._joining_since_ms, None
            self._metrics.record_rebalance(0.0 if since_ms is None else now_ms - since_ms, now_ms)
        self._call(lambda partitions: work.assignor.on_assignment(partitions, work.generation), work.assigned)
        self._call_timed("assigned", self.subscription.on_assigned if self.subscription else None, work.added)

    def _reassign(self, partitions: Iterable[TopicPartition]) -> None:
        self._fetcher.reassign(sorted(partitions), has_committed=True)
        self.on_change()

    def _call_timed(self, kind: str, callback: RebalanceCallback | None, partitions: Iterable[TopicPartition]) -> None:
        began_at_ms = monotonic_ms()
        self._call(callback, partitions)
        now_ms = monotonic_ms()
        with self._lock:
            self._metrics.record_callback(kind, now_ms - began_at_ms, now_ms)

    def _call(self, callback: RebalanceCallback | None, partitions: Iterable[TopicPartition]) -> None:
        if callback is None:
            return
        try:
            callback(sorted(partitions))
        except Exception as error:
            logger.exception("group %r: a rebalance callback failed", self.group_id)
            self._raised = self._raised or error

    def _raise_what_callbacks_raised(self) -> None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    # ------------------------------------------------------------ committing

    def consumed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of these, or of all that are assigned, as offsets to commit."""
        with self._lock:
            assigned = self._fetcher.assigned
            wanted = assigned.keys() if partitions is None else assigned.keys() & set(partitions)
            return {
                key: OffsetAndMetadata(position, "", assigned[key].read_epoch)
                for key in assigned
                if key in wanted and (position := assigned[key].position) is not None
            }

    def commit(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """Without waiting; the outcome is told in a later call. Not repeated."""
        now_ms = monotonic_ms()
        commit = Commit(
            offsets,
            asked_at_ms=now_ms,
            deadline_ms=now_ms + self._config.request_timeout_ms,
            is_repeated=False,
            callback=callback,
        )
        with self._lock:
            self.commits.add(commit, now_ms)
        self._link.deliver()

    def commit_and_wait(self, offsets: Offsets, deadline_ms: float) -> None:
        """After all commits before it. Raises `BusError`."""
        commit = self._add_commit(offsets, deadline_ms)
        self._wait(lambda: commit.is_done, deadline_ms)
        self.tell_outcomes()
        if not commit.is_done:
            raise BusError(ErrorCode.REQUEST_TIMED_OUT, "the offsets may or may not be committed: no answer in time")
        if commit.error is not None:
            raise commit.error

    def _add_commit(self, offsets: Offsets, deadline_ms: float) -> Commit:
        now_ms = monotonic_ms()
        commit = Commit(offsets, asked_at_ms=now_ms, deadline_ms=deadline_ms, is_repeated=True, callback=None)
        with self._lock:
            self.commits.add(commit, now_ms)
        self._link.deliver()
        return commit

    def tell_outcomes(self) -> None:
        """Callbacks and interceptors of commits that are done, in order, on the caller's thread."""
        with self._lock:
            done = self.commits.take_done()
        for commit in done:
            if commit.error is None:
                self._on_commit(commit.offsets)
            if commit.callback is not None:
                try:
                    commit.callback(commit.offsets, commit.error)
                except Exception as error:
                    logger.exception("the callback of an offset commit failed")
                    self._raised = self._raised or error

    def _auto_commit(self) -> None:
        with self._lock:
            # One that is not answered yet may be of these very offsets.
            is_due = self.commits.take_auto_due(monotonic_ms()) and self.commits.is_idle()
        offsets = self._uncommitted(None) if is_due else {}
        if offsets:
            self.commit(offsets, self._note_auto_commit)

    def _uncommitted(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit: for a member, only those that moved; for a consumer that is no member all of
        them, because their offsets expire by their last commit."""
        offsets = self.consumed(partitions)
        if self.subscription is None:
            return offsets
        return {key: found for key, found in offsets.items() if self.commits.committed.get(key) != found.offset}

    def _note_auto_commit(self, offsets: Offsets, error: BusError | None) -> None:
        if error is None:
            return
        logger.warning("group %r: the automatic offset commit failed: %s", self.group_id, error)
        if error.retriable:
            with self._lock:
                self.commits.hurry_auto(monotonic_ms())

    def _begin_last_commit(self, partitions: frozenset[TopicPartition], until_ms: float) -> None:
        """Before partitions are given up: with auto-commit all that was consumed of these. Goes on with the one that is
        under way for the same partitions."""
        if self._last_commit is not None and self._last_commit.partitions == partitions:
            return
        offsets = self._uncommitted(partitions) if self.commits.is_automatic else {}
        commit = self._add_commit(offsets, until_ms) if offsets else None
        self._last_commit = _LastCommit(partitions, commit, until_ms)

    def _end_last_commit(self, deadline_ms: float) -> bool:
        """True once it, or all that was asked for before, is committed or refused, or its time is over."""
        last = self._last_commit
        assert last is not None, "it was begun"
        commit = last.commit
        self._wait(self.commits.is_idle if commit is None else lambda: commit.is_done, min(deadline_ms, last.until_ms))
        with self._lock:
            is_over = self.commits.is_idle() if commit is None else commit.is_done
        if not is_over and monotonic_ms() < last.until_ms:
            return False
        self._last_commit = None
        if commit is not None and not (is_over and commit.error is None):
            reason = commit.error or "no answer in time"
            logger.warning("group %r: the commit before a revocation failed: %s", self.group_id, reason)
        self.tell_outcomes()
        return True

    def _commit_timeout_ms(self) -> int:
        return min(self._config.default_api_timeout_ms, self._config.max_poll_interval_ms)

    # ------------------------------------------------------------ asking the coordinator

    def committed(
        self, partitions: Iterable[TopicPartition], deadline_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed, None if nothing; with isolation_level read_committed it waits for
        transactions that may change it. Raises `BusError`."""
        is_stable = self._config.isolation_level == "read_committed"
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)

        def ask() -> None:
            missing = [partition for partition, offset in found.items() if offset is None]
            for partition, offset in self.find_committed(missing, deadline_ms, require_stable=is_stable).items():
                if isinstance(offset, BusError):
                    raise offset
                found[partition] = offset

        self._cluster.retry(ask, deadline_ms=deadline_ms)
        return found

    def find_committed(
        self, partitions: Iterable[TopicPartition], deadline_ms: float, *, require_stable: bool
    ) -> dict[TopicPartition, OffsetAndMetadata | BusError]:
        """Return the answer of `OffsetFetch` for these partitions. Raises `BusError` for all of them."""
        wanted = dict.fromkeys(partitions)
        found: dict[TopicPartition, OffsetAndMetadata | BusError] = {}
        for portion in portions(wanted) if wanted else ():
            answer = self._fetch_offsets(OffsetFetch(self.group_id, portion, require_stable), deadline_ms)
            found.update({partition: offset for partition, offset in answer.items() if partition in wanted})
        return found

    def _fetch_offsets(self, call: OffsetFetch, deadline_ms: float) -> FetchedOffsets:
        message = encode_group_call(call)

        def ask() -> FetchedOffsets:
            address = self._find_coordinator(deadline_ms)
            try:
                timeout_ms = min(self._config.request_timeout_ms, max(0.0, deadline_ms - monotonic_ms()))
                response = self._cluster.call("OffsetFetch", message, address=address, timeout_ms=timeout_ms)
                answer: FetchedOffsets | BusError = decode_group_answer(call, response)
                if isinstance(answer, BusError):
                    raise answer
            except BusError as error:
                if error.code in LOST_COORDINATOR:
                    with self._lock:
                        self.coordinator.mark_unknown(address, error, monotonic_ms())
                raise
            return answer

        return self._cluster.retry(ask, deadline_ms=deadline_ms)

    def _find_coordinator(self, deadline_ms: float) -> str:
        def is_settled() -> bool:
            self.coordinator.find(monotonic_ms())
            return self.coordinator.address is not None or self.coordinator.error is not None

        self._wait(is_settled, deadline_ms)
        with self._lock:
            self.coordinator.raise_error()
            if self._link.is_closed:
                raise closed_client()
            if self.coordinator.address is None:
                raise BusError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of group {self.group_id!r} was not found"
                )
            return self.coordinator.address

    def _wait(self, is_settled: Callable[[], bool], deadline_ms: float) -> None:
        """Wait until `is_settled`, which is called with the lock held, or `deadline_ms`, or until this client is
        closed."""
        while True:
            with self._lock:
                now_ms = monotonic_ms()
                self.commits.advance(now_ms)
                if is_settled() or now_ms >= deadline_ms or self._link.is_closed:
                    return
                if not self._link.has_outgoing:
                    due_ms = min(
                        deadline_ms, self.commits.next_event(now_ms), self.coordinator.next_event_after(now_ms)
                    )
                    self._changed.wait(max(0.0, due_ms - now_ms) / 1000)
            self._link.deliver()

    # ------------------------------------------------------------ the end

    def abandon(self, reason: str, timeout_ms: float) -> None:
        """Leave the group without a commit and without callbacks, and end. Safe to repeat, and after `close`."""
        with self._lock:
            self.commits.stop_auto()
            request = self.membership.leave(reason, monotonic_ms())
        self._link.deliver()
        if request is not None:
            with self._lock:
                self._changed.wait_for(lambda: self._last_left is request, timeout_ms / 1000)
        self._link.close()

    def close(self, deadline_ms: float) -> None:
        """Commit with auto-commit, leave, end. Raises what callbacks raise, when all is done; interrupted, it still
        leaves, and waits little for that: the other members must not wait until this one's session is over."""
        try:
            if self.subscription is not None:
                self.unsubscribe(deadline_ms, "the consumer is closed")
            else:
                self._begin_last_commit(frozenset(self._fetcher.assigned), deadline_ms)
                self._end_last_commit(deadline_ms)
        except BaseException:
            self.abandon("the consumer was interrupted while it was closed", _INTERRUPTED_LEAVE_MS)
            raise
        finally:
            self._link.close()
        with self._lock:
            self.commits.abandon(BusError(ErrorCode.REQUEST_TIMED_OUT, "the consumer was closed"))
        self.tell_outcomes()
        self._raise_what_callbacks_raised()


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"
