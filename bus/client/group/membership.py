"""A consumer's membership in its group: join, be assigned, send heartbeats, rebalance, leave.

A machine without threads, clock or I/O. It is told what was answered and that time has passed, sends requests without
waiting for them, and hands out *work*: what only the thread that polls may do, callbacks and the leader's assignment.
Guards Kafka's promise of one owner: a member gives up what it was told to give up before it joins again, and a
member that is out of the group owns nothing, may commit nothing, and learns it before it joins again.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bus.client.assignors import Assignment, Assignor, MemberSubscription, RebalanceProtocol, rebalance_protocol
from bus.client.config.clients import ConsumerConfig
from bus.client.connection.group_requests import (
    GroupCall,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    MemberIdRequired,
    SyncGroup,
)
from bus.client.group.link import LOST_COORDINATOR, CoordinatorFinder, GroupRequest
from bus.client.values import GroupMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

_JOIN_GRACE_MS = 5_000  # beyond the rebalance timeout, for the answer to travel; Kafka's
_OUT_OF_GROUP = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_JOIN_AGAIN_AT_ONCE = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)


class Phase(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"  # JoinGroup is under way
    LEADING = "leading"  # joined as the leader, the assignment is to be made
    SYNCING = "syncing"  # SyncGroup is under way
    STABLE = "stable"  # the assignment is there


class Generation(NamedTuple):
    id: int
    member_id: str


NO_GENERATION = Generation(-1, "")


class _SentHeartbeat(NamedTuple):
    request: GroupRequest
    generation: Generation
    late_at_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Revoke:
    """Commit what was consumed of these, call on_revoked, stop reading them; then `done`."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Lose:
    """Another member may have these already: call on_lost, stop reading them; then `done`."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Lead:
    """Let `assignor` spread the partitions of `topics` over `members`; then `lead`. `is_kept`: the assignment holds as
    it is: `kept`, of all members together; only the numbers of partitions are wanted."""

    assignor: Assignor
    topics: frozenset[str]
    members: Mapping[str, MemberSubscription]
    is_kept: bool
    kept: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """Read `assigned` from now on, tell the assignor, call on_assigned with `added`."""

    assignor: Assignor
    assigned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    generation: int


Work = Revoke | Lose | Lead | Assign
MemberAnswer = Joined | MemberIdRequired | frozenset[TopicPartition] | BusError | None


class Membership:
    def __init__(
        self,
        config: ConsumerConfig,
        assignors: Sequence[Assignor],
        coordinator: CoordinatorFinder,
        *,
        send: Callable[[GroupRequest], None],
        backoff_ms: Callable[[int], float],
    ) -> None:
        assert config.group_id is not None, "a member has a group"
        self._config = config
        self._group_id = config.group_id
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self.protocol = rebalance_protocol(assignors)
        self._coordinator = coordinator
        self._send = send
        self._backoff_ms = backoff_ms
        self.topics: frozenset[str] | None = None  # None: not subscribed
        self.owned: frozenset[TopicPartition] = frozenset()
        self.phase = Phase.UNJOINED
        self.generation = NO_GENERATION
        self._assignor_name = ""
        self._joined_topics: frozenset[str] = frozenset()
        self._is_rejoin_needed = False
        self._rejoin_reason = ""
        self._is_prepared = False  # everything that has to be given up before the next join is given up
        self._under_way: GroupRequest | None = None  # JoinGroup or SyncGroup
        self._lost_sync: GroupRequest | None = None  # it had no answer, and is to be sent again
        self._lead: Lead | None = None
        self._assignment: frozenset[TopicPartition] | None = None  # synced and not taken over yet
        self._led_partitions: dict[str, int] | None = None  # topic -> the number of partitions that have their place
        self._retry_at_ms = -math.inf
        self._failures = 0
        self._error: BusError | None = None  # to be raised by the next poll
        self._fatal: BusError | None = None  # to be raised by every poll
        self._polled_at_ms = 0.0
        self._left_behind_at_ms: float | None = None  # the program that polled is seen to be over since then
        self._heartbeat: _SentHeartbeat | None = None  # under way
        self._heartbeat_at_ms = 0.0
        self._heard_at_ms = 0.0  # the coordinator's last word

    # ------------------------------------------------------------ for the thread that polls

    def subscribe(self, topics: Collection[str]) -> None:
        """Set the topics for the next join; the next poll joins if the last join asked for other topics."""
        self.topics = frozenset(topics)

    def note_poll(self, now_ms: float) -> None:
        self._polled_at_ms = now_ms
        self._left_behind_at_ms = None

    def note_left_behind(self, now_ms: float) -> None:
        """Note that what polled has ended with an error, and nobody has closed the consumer: unless it is polled again,
        the member has as long as that of a process that died."""
        if self._left_behind_at_ms is None:
            self._left_behind_at_ms = now_ms

    def next_work(self, now_ms: float) -> Work | None:
        """Return the work to do now before records may be returned; None: nothing, or nothing yet. Raises
        `BusError`."""
        if self.topics is None:
            return None
        if self._lead is not None:
            return self._lead
        if self._assignment is not None:
            work = self._complete(self._assignment)
            if work is not None:
                return work
        if not self.is_rejoining() or self._under_way is not None:
            return None
        if self.generation.id < 0 and self.owned:
            return Lose(self.owned)
        self._raise_error()
        self._coordinator.raise_error()
        address = self._coordinator.address
        if address is None:
            self._coordinator.find(now_ms)
            return None
        if self._lost_sync is not None and self._lost_sync.address != address:
            self._unjoin()  # another coordinator may not know the generation
        if self._lost_sync is not None:
            if now_ms >= self._retry_at_ms:
                self._sync_again(self._lost_sync, address)
            return None
        if not self._is_prepared:
            revoke = self._preparation()
            if revoke is not None:
                return revoke
            self._is_prepared = True
        if now_ms >= self._retry_at_ms:
            self._join(address)
        return None

    def done(self, work: Revoke | Lose) -> None:
        """The callbacks have run, and these are not read any more."""
        self.owned -= work.partitions
        if self._assignment is not None:
            self.request_rejoin("gave up partitions that another member is to have")
        else:
            self._is_prepared = True

    def lead(self, work: Lead, partitions: Mapping[str, int], assignment: Assignment, now_ms: float) -> None:
        """The leader's result for `work`; it is of no use if the group went on meanwhile."""
        if work is not self._lead:
            return
        self._lead = None
        self._led_partitions = _placed(work, partitions, assignment)
        address = self._coordinator.address
        if address is None:
            self._fail(BusError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not known"), now_ms)
        else:
            self._sync(address, {} if work.is_kept else assignment)

    def fail_lead(self, work: Lead, now_ms: float) -> None:
        """There is no assignment; join again after a pause."""
        if work is self._lead:
            self._lead = None
            self._fail(BusError(ErrorCode.UNKNOWN_SERVER_ERROR, "the leader made no assignment"), now_ms)

    def request_rejoin(self, reason: str) -> None:
        self._is_rejoin_needed = True
        self._rejoin_reason = reason

    def note_partitions(self, partitions: Mapping[str, int]) -> None:
        """How many partitions topics have now; the leader rebalances if it assigned other ones."""
        led = self._led_partitions
        if led is None or self.phase is not Phase.STABLE:
            return
        changed = sorted(topic for topic in led if partitions.get(topic, 0) != led[topic])
        if changed:
            self._led_partitions = None
            self.request_rejoin(f"the partitions of {', '.join(changed)} are other ones")

    def led_topics(self) -> frozenset[str]:
        """Those of the group, if this member led its last rebalance: it watches their partitions."""
        return frozenset(self._led_partitions or ())

    def leave(self, reason: str, now_ms: float) -> GroupRequest | None:
        """Be out of the group. The request that says so is sent wherever the coordinator may know this member, in the
        pause before it joins again too, unless it is static: that one stays until its session is over, so that its
        restart moves nothing (KIP-345)."""
        address = self._coordinator.address
        request = None
        if self._config.group_instance_id is None and self.generation.member_id and address is not None:
            request = GroupRequest(LeaveGroup(self.metadata(), reason), address, self._config.request_timeout_ms)
            self._send(request)
        self._reset(reason, keeps_member_id=False)
        return request

    def unsubscribe(self) -> None:
        """After `leave`: nothing is owned, and no poll joins."""
        self.topics = None
        self.owned = frozenset()
        self._led_partitions = None
        self._error = None

    # ------------------------------------------------------------ questions

    def is_rejoining(self) -> bool:
        is_other = self.topics is not None and self.topics != self._joined_topics
        return self._is_rejoin_needed or is_other or self.phase is not Phase.STABLE

    def has_work(self) -> bool:
        """An answer came that the thread that polls has to act on at once."""
        return self._lead is not None or self._assignment is not None

    def has_news(self) -> bool:
        """The next poll has more to do than to give out records."""
        if self.topics is None:
            return False
        return self.has_work() or (self._under_way is None and self.is_rejoining())

    def next_event(self, now_ms: float) -> float:
        """When `next_work` may have more to do without any answer."""
        if self.topics is None or self._under_way is not None or not self.is_rejoining():
            return math.inf
        return max(
            now_ms, self._retry_at_ms, self._coordinator.next_event() if self._coordinator.address is None else now_ms
        )

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(
            self._group_id, self.generation.id, self.generation.member_id, self._config.group_instance_id
        )

    def seconds_since_heartbeat(self, now_ms: float) -> float:
        """Since the coordinator's last word; NaN before the first one."""
        return (now_ms - self._heard_at_ms) / 1000 if self._heard_at_ms else math.nan

    def commit_stamp(self) -> GroupMetadata | BusError:
        """Return the identity for offset commits, or the reason why there is none: only a member of the present
        generation may commit."""
        if self.phase is Phase.STABLE and self.generation.id >= 0:
            return self.metadata()
        if self.phase in (Phase.JOINING, Phase.LEADING, Phase.SYNCING):
            return BusError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"group {self._group_id!r} rebalances: poll until it is over, then commit what is still assigned",
            )
        return BusError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"this consumer is no member of group {self._group_id!r} any more: other members may have its partitions "
            f"already. If it was too slow, raise max_poll_interval_ms or lower max_poll_records",
        )

    # ------------------------------------------------------------ time, on any thread

    def tick(self, now_ms: float) -> float:
        """Heartbeats, and the two timeouts; returns when to be called again. Comes while the application works, too."""
        if self.phase not in (Phase.LEADING, Phase.SYNCING, Phase.STABLE):
            return math.inf
        if self._left_behind_at_ms is not None and now_ms >= self._poll_deadline_ms():
            logger.warning(
                "leaving group %r: what polled this consumer ended with an error, and did not close it; use `with`, or "
                "poll again to go on",
                self._group_id,
            )
            self.leave("the program that polled ended with an error", now_ms)
            return math.inf
        if now_ms - self._polled_at_ms >= self._config.max_poll_interval_ms:
            logger.warning(
                "leaving group %r: no poll for max_poll_interval_ms=%d; processing took too long",
                self._group_id,
                self._config.max_poll_interval_ms,
            )
            self.leave("max.poll.interval.ms is over", now_ms)
            return math.inf
        address = self._coordinator.address
        if address is None:
            self._coordinator.find(now_ms)
            return min(max(now_ms, self._coordinator.next_event()), self._poll_deadline_ms())
        if now_ms - self._heard_at_ms >= self._config.session_timeout_ms:
            self._heard_at_ms = now_ms
            self._heartbeat = None
            late = BusError(ErrorCode.REQUEST_TIMED_OUT, "no heartbeat was answered for session_timeout_ms")
            self._coordinator.mark_unknown(address, late, now_ms)
            return now_ms
        if self._heartbeat is not None and now_ms >= self._heartbeat.late_at_ms:
            late = BusError(ErrorCode.REQUEST_TIMED_OUT, "a heartbeat had no answer in time")
            self._on_heartbeat(self._heartbeat, late, now_ms)
            return now_ms
        if self._heartbeat is None and now_ms >= self._heartbeat_at_ms:
            self._send_heartbeat(address, now_ms)
        due_ms = self._heartbeat_at_ms if self._heartbeat is None else self._heartbeat.late_at_ms
        return min(due_ms, self._heard_at_ms + self._config.session_timeout_ms, self._poll_deadline_ms())

    def heartbeat_now(self) -> None:
        """The coordinator has news: ask at once. A notice may be older than this generation, the answer is not."""
        self._heartbeat_at_ms = -math.inf

    def _poll_deadline_ms(self) -> float:
        deadline_ms = self._polled_at_ms + self._config.max_poll_interval_ms
        if self._left_behind_at_ms is None:
            return deadline_ms
        return min(deadline_ms, self._left_behind_at_ms + self._config.session_timeout_ms)

    def _send_heartbeat(self, address: str, now_ms: float) -> None:
        timeout_ms = self._patience_ms()
        request = GroupRequest(Heartbeat(self.metadata()), address, timeout_ms)
        self._heartbeat = _SentHeartbeat(request, self.generation, now_ms + timeout_ms)
        self._send(request)

    # ------------------------------------------------------------ joining

    def _preparation(self) -> Revoke | None:
        if self.generation.id < 0:
            return None
        if self.protocol is RebalanceProtocol.EAGER:
            return Revoke(self.owned)
        assert self.topics is not None, "only a subscriber prepares to join"
        dropped = frozenset(partition for partition in self.owned if partition.topic not in self.topics)
        return Revoke(dropped) if dropped else None

    def _join(self, address: str) -> None:
        assert self.topics is not None, "only a subscriber joins"
        self.phase = Phase.JOINING
        self._joined_topics = self.topics
        self._is_rejoin_needed = False
        config = self._config
        subscriptions = {name: self._subscription(assignor) for name, assignor in self._assignors.items()}
        call = JoinGroup(
            self.metadata(),
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            subscriptions=subscriptions,
            client_id=config.client_id,
            reason=self._rejoin_reason,
        )
        self._begin(call, address)

    def _subscription(self, assignor: Assignor) -> MemberSubscription:
        return MemberSubscription(
            tuple(sorted(self._joined_topics)),
            user_data=assignor.subscription_user_data(self._joined_topics),
            owned=tuple(sorted(self.owned)),
            generation=self.generation.id,
            group_instance_id=self._config.group_instance_id,
            rack=self._config.client_rack or None,
        )

    def _sync(self, address: str, assignment: Assignment) -> None:
        self.phase = Phase.SYNCING
        self._begin(SyncGroup(self.metadata(), self._assignor_name, assignment), address)

    def _sync_again(self, lost: GroupRequest, address: str) -> None:
        """Send the sync that had no answer again: whether the first one has arrived or not, the answer is that of this
        generation. A join of the leader would begin another rebalance."""
        self._lost_sync = None
        self._begin(lost.call, address)

    def _begin(self, call: GroupCall, address: str) -> None:
        timeout_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + _JOIN_GRACE_MS)
        self._under_way = GroupRequest(call, address, timeout_ms, patience_ms=self._patience_ms())
        self._send(self._under_way)

    def _patience_ms(self) -> int:
        """A third of the session, for each request to the coordinator: the one before was answered a third ago, and
        another third is left for the coordinator to be found by another connection before it takes this member for
        dead."""
        return min(self._config.request_timeout_ms, self._config.session_timeout_ms // 3)

    def _complete(self, assigned: frozenset[TopicPartition]) -> Work | None:
        assert self.topics is not None, "only a subscriber is assigned partitions"
        self._is_prepared = False
        if any(partition.topic not in self.topics for partition in assigned):
            self._assignment = None
            self.request_rejoin("the subscription changed during the rebalance")
            return None
        revoked = self.owned - assigned
        if revoked:
            return Revoke(revoked)
        self._assignment = None
        added, self.owned = assigned - self.owned, assigned
        return Assign(self._assignors[self._assignor_name], assigned, added, self.generation.id)

    # ------------------------------------------------------------ answers

    def on_answer(self, request: GroupRequest, answer: MemberAnswer, now_ms: float) -> None:
        """To a request that this machine sent."""
        if self._heartbeat is not None and request is self._heartbeat.request:
            assert answer is None or isinstance(answer, BusError), f"{answer!r} answers a heartbeat"
            self._on_heartbeat(self._heartbeat, answer, now_ms)
        elif request is self._under_way:
            self._under_way = None
            match answer:
                case BusError():
                    self._on_refused(request, answer, now_ms)
                case MemberIdRequired(member_id):
                    self.generation = Generation(-1, member_id)
                    self._unjoin()
                case Joined():
                    self._on_joined(request, answer, now_ms)
                case _:
                    assert answer is not None, f"nothing answers {request.method}"
                    self._on_synced(answer)

    def _on_joined(self, request: GroupRequest, answer: Joined, now_ms: float) -> None:
        self.generation = Generation(answer.generation, answer.member_id)
        self._assignor_name = answer.assignor
        self._heartbeat, self._heartbeat_at_ms = None, now_ms + self._config.heartbeat_interval_ms
        self._heard_at_ms = now_ms
        self._led_partitions = None
        if answer.assignor not in self._assignors:
            found = f"expected one of {sorted(self._assignors)} as the group's assignor, found {answer.assignor!r}"
            self._give_up(BusError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, found), now_ms)
        elif answer.leader_id != answer.member_id:
            assert request.address is not None, "a coordinator has an address"
            self._sync(request.address, {})
        elif answer.unreadable is not None:
            self._give_up(answer.unreadable, now_ms)
        else:
            self.phase = Phase.LEADING
            members = answer.subscriptions
            topics = frozenset(topic for member in members.values() for topic in member.topics)
            self._lead = Lead(self._assignors[answer.assignor], topics, members, answer.is_kept, answer.kept)

    def _on_synced(self, assignment: frozenset[TopicPartition]) -> None:
        self._assignment = assignment
        self.phase = Phase.STABLE
        self._failures, self._retry_at_ms = 0, -math.inf
        self.heartbeat_now()  # tells the coordinator on which stream to send notices

    def _on_refused(self, request: GroupRequest, error: BusError, now_ms: float) -> None:
        """JoinGroup or SyncGroup failed."""
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._be_fenced(error)
        elif error.code in _OUT_OF_GROUP:
            self._reset(str(error), keeps_member_id=error.code is ErrorCode.ILLEGAL_GENERATION)
        elif error.code in _JOIN_AGAIN_AT_ONCE:
            self._unjoin()
        else:
            if error.code in LOST_COORDINATOR:
                self._coordinator.mark_unknown(request.address, error, now_ms)
            if error.code is ErrorCode.REQUEST_TIMED_OUT and isinstance(request.call, SyncGroup):
                self._lost_sync = request
                self._note_failure(error, now_ms)
            elif error.retriable:
                self._fail(error, now_ms)
            else:
                self._give_up(error, now_ms)

    def _on_heartbeat(self, sent: _SentHeartbeat, error: BusError | None, now_ms: float) -> None:
        self._heartbeat = None
        if error is None:
            self._heard_at_ms = now_ms
            self._heartbeat_at_ms = now_ms + self._config.heartbeat_interval_ms
            return
        self._heartbeat_at_ms = now_ms + self._backoff_ms(0)
        if error.code in LOST_COORDINATOR:
            self._coordinator.mark_unknown(sent.request.address, error, now_ms)
        elif error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._heard_at_ms = now_ms
            self._heartbeat_at_ms = now_ms + self._config.heartbeat_interval_ms
        self.note_refusal(error, sent.generation)

    def note_refusal(self, error: BusError, generation: Generation) -> None:
        """A heartbeat or a commit that was sent in `generation` was refused: what it means for the membership."""
        if generation != self.generation:
            return  # belongs to an earlier generation
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.phase is Phase.STABLE:
                self.request_rejoin("the group rebalances")
        elif error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._be_fenced(error)
        elif error.code in _OUT_OF_GROUP:
            logger.warning("out of group %r: %s", self._group_id, error)
            self._reset(str(error), keeps_member_id=error.code is ErrorCode.ILLEGAL_GENERATION)

    # ------------------------------------------------------------ failing

    def _unjoin(self) -> None:
        self.phase = Phase.UNJOINED
        self._under_way = self._lost_sync = self._lead = self._assignment = self._heartbeat = None

    def _reset(self, reason: str, *, keeps_member_id: bool) -> None:
        """Out of the generation: what is owned is lost."""
        self.generation = Generation(-1, self.generation.member_id if keeps_member_id else "")
        self._unjoin()
        self._is_prepared = False
        self._led_partitions = None
        self.request_rejoin(reason)

    def _be_fenced(self, error: BusError) -> None:
        logger.error("fenced: another consumer has group_instance_id %r: %s", self._config.group_instance_id, error)
        self._reset(str(error), keeps_member_id=False)
        self._fatal = error

    def _fail(self, error: BusError, now_ms: float) -> None:
        """Join again after a pause."""
        self._unjoin()
        self._note_failure(error, now_ms)

    def _note_failure(self, error: BusError, now_ms: float) -> None:
        level = logging.DEBUG if self._failures else logging.INFO
        logger.log(level, "joining group %r is tried again: %s", self._group_id, error)
        self._retry_at_ms = now_ms + self._backoff_ms(self._failures)
        self._failures += 1

    def _give_up(self, error: BusError, now_ms: float) -> None:
        """Fail for the user to see; the poll after that tries again."""
        self._fail(error, now_ms)
        self._error = error

    def _raise_error(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _placed(work: Lead, partitions: Mapping[str, int], assignment: Assignment) -> dict[str, int]:
    """Return, by topic, how many partitions need no further rebalance. The others are owned by a member that is to give
    them up and to join again; if it dies before that, or comes back as a static one, no other member asks for that
    rebalance. It is not known for which partitions a kept assignment was made: all of its partitions count as
    placed."""
    if work.is_kept:
        kept = Counter(partition.topic for partition in work.kept)
        return {topic: kept[topic] for topic in work.topics}
    given = frozenset[TopicPartition]().union(*assignment.values())
    owned = frozenset[TopicPartition]().union(*(member.owned for member in work.members.values()))
    moving = Counter(found.topic for found in owned - given if found.partition < partitions.get(found.topic, 0))
    return {topic: partitions.get(topic, 0) - moving[topic] for topic in work.topics}
