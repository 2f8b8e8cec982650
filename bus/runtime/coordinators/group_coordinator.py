"""The coordinator of consumer groups on one broker: it routes calls to shards and runs the background tasks.

Theory of operation. A group belongs to one partition of `__consumer_offsets`, and to its shard (shard.py) on the broker
that leads the partition (coordinated_topic.py). The topic is created when a first group needs it; until then calls that
only read are answered as if there were no group. Heartbeats are the most frequent call, so the coordinator checks them
directly against the committed group instead of queueing them behind other calls of the shard. Background tasks load
shards, expire offsets, and remove the offsets of deleted topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from bus.cluster_metadata.cluster_state import ClusterState, Topic
from bus.consumer_groups.bounds import (
    GroupBounds,
    GroupTotals,
    Placement,
    check_group_id,
    check_group_id_length,
    check_request,
    coordinator_partition,
    find_placement,
)
from bus.consumer_groups.decisions import GroupMachine, decide, list_group
from bus.consumer_groups.group import MINUTE_MS, Group, GroupRules, Notice
from bus.consumer_groups.loading import GroupCodec
from bus.consumer_groups.membership import check_heartbeat, is_sign_of_life
from bus.consumer_groups.records import LoggedRecord
from bus.consumer_groups.requests import (
    NO_MEMBER_ID,
    ApplyOffsets,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    GroupAnswer,
    GroupCommand,
    GroupTimer,
    Heartbeat,
    HeartbeatTaken,
    JoinGroup,
    OffsetCommit,
    TimerKind,
    TransactionKey,
    TxnOffsetCommit,
    VoteOffsets,
)
from bus.descriptions import GroupListing
from bus.errors import ErrorCode, NotController, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, GROUP_PLACEMENT, BrokerEndpoint
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.coordinated_topic import CoordinatedTopic, TopicPlan
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope, answered
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Admission:
    has_ended: bool = False  # the transaction's vote or its end came by


class Admissions:
    def __init__(self) -> None:
        """Offset commits that wait for the transaction coordinator to admit them, and are not yet in the queue of their
        group.

        Guards one promise: no offset enters a transaction after its end. The transaction's coordinator may end the
        transaction after it has admitted the commit and before the offsets are in the group's log; they would be
        pending forever, or replace those that were voted on. So each waiting admission records an end that passes here.
        An end that passes at another broker is not seen here: a commit that is admitted while another broker leads the
        group's partition is refused when it comes back (`GroupCoordinator.commit_in_transaction`).
        """
        self._waiting: dict[tuple[str, TransactionKey], set[Admission]] = {}

    @contextlib.contextmanager
    def begin(self, group_id: str, transaction: TransactionKey) -> Iterator[Admission]:
        """Register an admission for the duration of the block."""
        admission, key = Admission(), (group_id, transaction)
        others = self._waiting.setdefault(key, set())
        others.add(admission)
        try:
            yield admission
        finally:
            others.discard(admission)
            if not others and self._waiting.get(key) is others:
                del self._waiting[key]

    def end(self, group_id: str, transaction: TransactionKey) -> None:
        for admission in self._waiting.get((group_id, transaction), ()):
            admission.has_ended = True


# Shards that commit at a time; the others gather meanwhile what will be one commit then. A commit of one record costs
# as much as one of fifty, and its encoding competes with the calls for the interpreter: with one at a time, hundreds of
# groups commit more than twice as much a second as with as many as there are threads, and a single one no less.
COMMITS_MAX = 1
# Background tasks look at this many offsets at a time, so that they delay no call for long.
_LOOK_THROUGH_OFFSETS = 10_000  # offsets examined at a time for deleted topics
_SWEEP_OFFSETS = 5_000
_GROUP_OFFSETS = 50  # a group without offsets counts as this many
_TAKEN = HeartbeatTaken()
SEVERAL_BROKERS_DELAY_MS = 3_000  # group.initial.rebalance.delay.ms as Kafka has it

GroupShard = CoordinatorShard[Group, GroupCommand, LoggedRecord, GroupAnswer, Notice]
GroupTopic = CoordinatedTopic[Group, GroupCommand, LoggedRecord, GroupAnswer, Notice]
OnMemberNotice = Callable[[Refused], None]
MemberKey = tuple[str, str]  # group id, member id


class GroupCoordinator:
    """`start` once the cluster has; `close` before it ends. `new_uuid` gives a text that was never given."""

    def __init__(
        self,
        cluster: Cluster,
        config: BrokerConfig,
        *,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
        new_uuid: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._new_uuid = new_uuid
        self._placement = Placement.ABSOLUTE
        self._topic: GroupTopic = CoordinatedTopic(
            TopicPlan(
                CONSUMER_OFFSETS_TOPIC,
                "groups",
                config.offsets_topic_num_partitions,
                {GROUP_PLACEMENT: Placement.ABSOLUTE.value},
            ),
            cluster,
            tasks,
            new_shard=self._new_shard,
            check_topic=self._follow_placement,
            on_closed=self._tell_moved,
        )
        self._commit_slots = asyncio.Semaphore(COMMITS_MAX)
        self._machine = GroupMachine(group_rules(config))
        self._totals = GroupTotals(group_bounds(config))
        self._upkeep: asyncio.Task[None] | None = None
        self._listeners: dict[MemberKey, OnMemberNotice] = {}
        self._admissions = Admissions()
        self._is_closed = False

    def start(self) -> None:
        """Load the groups that there are, in the background."""
        self._topic.start()
        self._cluster.controller.on_topic_deleted(self._on_topic_deleted)
        self._cluster.metadata.add_follower(self._follow_brokers)
        self._upkeep = self._tasks.start(self._keep_up(), "groups/upkeep")

    def close(self) -> None:
        """Refuse waiting joins and syncs, and every new call; only calls whose commit is in flight still get their
        answers."""
        self._is_closed = True
        self._topic.close()
        if self._upkeep is not None:
            self._upkeep.cancel()

    # ------------------------------------------------------------------ calls

    async def find(self, group_id: str) -> BrokerEndpoint | Refused:
        """The leader of the group's partition. Creates `__consumer_offsets` if it is not there."""
        refused = check_group_id(group_id) or await self.prepare()
        if refused is not None:
            return refused
        number = self._number_of(group_id)
        if isinstance(number, Refused):
            return number
        return self._topic.find(number)

    async def prepare(self) -> Refused | None:
        """See `CoordinatedTopic.prepare`."""
        return await self._topic.prepare()

    async def call(self, command: GroupCommand) -> GroupAnswer:
        return await (await self.begin(command))

    async def begin(self, command: GroupCommand) -> asyncio.Future[GroupAnswer]:
        """See `CoordinatorShard.submit`; creates `__consumer_offsets` for a command that may be a group's beginning."""
        if isinstance(command, (JoinGroup, OffsetCommit)) and not check_request(None, command):
            refused = await self._prepare_for(command)
            if refused is not None:
                return answered(refused)
        return self.submit(command)

    async def _prepare_for(self, command: GroupCommand) -> Refused | None:
        if self._topic.topic is not None:
            return None
        try:
            return await self.prepare()
        except NotController:  # a client that asks for the coordinator has the topic created
            return Refused(ErrorCode.NOT_COORDINATOR, f"no broker coordinates group {command.group_id} yet")

    def submit(self, command: GroupCommand) -> asyncio.Future[GroupAnswer]:
        """Submit a command for an existing group; unlike `begin` it creates nothing."""
        shard = self._find_shard(command.group_id)
        if isinstance(command, (VoteOffsets, ApplyOffsets, DropOffsets)):
            self._admissions.end(command.group_id, command.transaction)
            if shard is None:  # the transaction has the group, so other brokers know of the topic
                shard = Refused(ErrorCode.NOT_COORDINATOR, f"{CONSUMER_OFFSETS_TOPIC} is not known here yet")
        if isinstance(shard, CoordinatorShard):
            return shard.submit(self._with_member_id(command))
        return answered(self._answer_without_groups(command) if shard is None else shard)

    async def commit_in_transaction(
        self, command: TxnOffsetCommit, admit: Callable[[int], Awaitable[Refused | None]]
    ) -> GroupAnswer:
        """The answer, once the offsets are pending in a transaction that has this group. `admit`, called with the
        group's partition, adds the group to the transaction or says why it may not be; it comes first, so that the end
        of the transaction comes here. CONCURRENT_TRANSACTIONS if that end began before the offsets were written."""
        refused = check_request(None, command) or await self._prepare_for(command)
        number = refused or self._number_of(command.group_id)
        if isinstance(number, Refused):
            return number
        shard = self._topic.shard(number)
        if isinstance(shard, Refused):
            return shard
        with self._admissions.begin(command.group_id, command.transaction) as admission:
            refused = await admit(number)
            if refused is not None:
                return refused
            # If the shard has changed, another broker led the partition meanwhile, and the end may have gone there.
            if admission.has_ended or self._find_shard(command.group_id) is not shard:
                return Refused(
                    ErrorCode.CONCURRENT_TRANSACTIONS,
                    f"group {command.group_id}: {command.transaction} is being ended; no offsets were added to it",
                )
            # No other call may come between: it is in the queue of the shard from here on.
            answer = shard.submit(command)
        return await answer

    def heartbeat(self, command: Heartbeat) -> HeartbeatTaken | Refused:
        """At once."""
        shard = self._find_shard(command.group_id)
        if isinstance(shard, CoordinatorShard):
            return heartbeat(shard, command)
        return check_heartbeat(None, command) if shard is None else _take_while_loading(shard)

    def list_groups(self) -> tuple[Iterator[GroupListing], Refused | None]:
        """List the groups of all partitions that this broker leads, as they are now, and the reason why some may be
        missing, if any."""
        refusals = [
            refused
            for shard in map(self._topic.shard, self._topic.led_here())
            if (refused := shard if isinstance(shard, Refused) else shard.refusal) is not None
        ]
        groups = [group for shard in self._serving() for group in shard.states.values()]
        return map(list_group, groups), (refusals[0] if refusals else None)

    def protocol_type(self, group_id: str) -> str | None:
        """That of the group as it is; None if there is none, or nothing is known of it for now."""
        group = self._find_group(group_id)
        return None if group is None else group.protocol_type

    # ------------------------------------------------------------------ notices

    def listen(self, group_id: str, member_id: str, on_notice: OnMemberNotice) -> None:
        """Have the member's notices sent there from now on, and nowhere else."""
        self._listeners[group_id, member_id] = on_notice

    def unlisten(self, group_id: str, member_id: str, on_notice: OnMemberNotice) -> None:
        """Remove the listener; no effect if another one has replaced it."""
        if self._listeners.get((group_id, member_id)) is on_notice:
            del self._listeners[group_id, member_id]

    def _on_notice(self, notice: Notice) -> None:
        tell = self._listeners.get((notice.group_id, notice.member_id))
        if tell is not None:
            tell(notice.refused)

    # ------------------------------------------------------------------ shards

    def follow(self, cluster: ClusterState) -> None:
        """See `CoordinatedTopic.follow`."""
        self._topic.follow(cluster)

    def _follow_brokers(self, cluster: ClusterState) -> None:
        self._machine.rules = group_rules(self._config, broker_count=len(cluster.brokers))

    def _follow_placement(self, topic: Topic) -> Refused | None:
        placement = _placement_of(topic)
        if isinstance(placement, Refused):
            return placement
        self._placement = placement
        return None

    def _new_shard(self, _: int, partition: Partition) -> GroupShard:
        rows = self._cluster.storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)
        return CoordinatorShard(
            self._machine,
            CoordinatorLog(partition, rows, GroupCodec(), clock=self._clock, calls=self._calls),
            self._totals,
            clock=self._clock,
            tasks=self._tasks,
            commit_slots=self._commit_slots,
            on_notice=self._on_notice,
        )

    def _tell_moved(self, number: int, moved: Refused) -> None:
        """The members look for the new coordinator."""
        for (group_id, _), tell in list(self._listeners.items()):
            if self._topic.topic is None or self._number_of(group_id) == number:
                tell(moved)

    def _find_shard(self, group_id: str) -> GroupShard | Refused | None:
        """None: there is no group yet. An id that is too long is refused before its hash is computed."""
        if self._topic.topic is None:
            return None
        number = self._number_of(group_id)
        return number if isinstance(number, Refused) else self._topic.shard(number)

    def _number_of(self, group_id: str) -> int | Refused:
        """The partition of the group."""
        topic = self._topic.topic
        assert topic is not None, "there is no partition without its topic"
        refused = check_group_id_length(group_id)
        return refused or _partition_of(group_id, len(topic.partitions), self._placement)

    def _find_group(self, group_id: str) -> Group | None:
        shard = self._find_shard(group_id)
        return shard.states.get(group_id) if isinstance(shard, CoordinatorShard) else None

    def _serving(self) -> Iterator[GroupShard]:
        return self._topic.serving()

    def _with_member_id(self, command: GroupCommand) -> GroupCommand:
        if not isinstance(command, JoinGroup) or command.member_id != NO_MEMBER_ID:
            return command
        return replace(command, new_member_id=f"{command.group_instance_id or command.client_id}-{self._new_uuid()}")

    def _answer_without_groups(self, command: GroupCommand) -> GroupAnswer:
        """There is no `__consumer_offsets`, so there is no group."""
        step = decide(None, command, request_id=0, rules=self._machine.rules, now_ms=self._clock.now_ms())
        assert not step.records, f"{type(command).__name__} writes, and there is no topic to write to"
        (reply,) = step.replies
        return reply.answer

    # ------------------------------------------------------------------ upkeep

    def _on_topic_deleted(self, topic: str, topic_id: str) -> None:
        if not self._is_closed:
            self._tasks.start(self._forget_topic(topic, topic_id), f"groups/forget/{topic}")

    async def _forget_topic(self, topic: str, topic_id: str) -> None:
        for shard in list(self._serving()):
            await sweep(shard, functools.partial(ForgetTopic, topic=topic, topic_id=topic_id))

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for shard in list(self._serving()):
                try:
                    await self._expire_offsets(shard)
                except Exception:
                    _log.exception("offsets could not be looked through; the next time will do it")

    async def _expire_offsets(self, shard: GroupShard) -> None:
        """Also those of topics that were deleted while the shard could not be told: before a crash, or a load."""
        for topic, topic_id in await self._find_gone_topics(shard):
            await sweep(shard, functools.partial(ForgetTopic, topic=topic, topic_id=topic_id))
        now_ms = self._cluster.retention_clock.now_ms()
        await sweep(shard, functools.partial(ExpireOffsets, now_ms=now_ms))

    async def _find_gone_topics(self, shard: GroupShard) -> set[tuple[str, str]]:
        gone: set[tuple[str, str]] = set()
        looked_through = 0
        for group in list(shard.states.values()):
            looked_through += 1 + len(group.offsets)
            if looked_through >= _LOOK_THROUGH_OFFSETS:
                looked_through = 0
                await asyncio.sleep(0)  # others have their turn
            known = self._cluster.state.topic_names
            gone.update(
                (partition.topic, stored.topic_id)
                for partition, stored in group.offsets.items()
                if stored.topic_id not in known
            )
        return gone


def heartbeat(shard: GroupShard, command: Heartbeat) -> HeartbeatTaken | Refused:
    """While the groups are being loaded every heartbeat is taken, as Kafka does: who sent it may well be a member, and
    its session begins with the load."""
    refused = shard.refusal
    if refused is not None:
        return _take_while_loading(refused)
    group = shard.states.get(command.group_id)
    answer = check_heartbeat(group, command)
    if group is not None and is_sign_of_life(answer):
        session = GroupTimer(TimerKind.SESSION, command.group_id, command.member_id)
        shard.set_timer(session, group.members[command.member_id].session_timeout_ms)
    return answer


def _take_while_loading(refused: Refused) -> HeartbeatTaken | Refused:
    return _TAKEN if refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else refused


async def sweep(shard: GroupShard, command_for: Callable[[str], GroupCommand]) -> None:
    """Have the shard decide on a command about each of its groups. A refused command is left to the next sweep."""
    for portion in _portions(shard, tuple(shard.states)):
        commands = filter(shard.would_change, map(command_for, portion))
        answers = [shard.submit(command) for command in commands]
        if answers:
            await asyncio.wait(answers)
        await asyncio.sleep(0)  # others have their turn


def _portions(shard: GroupShard, group_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split the groups into portions of similar work: many small groups, or one large group."""
    portion: list[str] = []
    items = 0
    for group_id in group_ids:
        group = shard.states.get(group_id)
        items += _GROUP_OFFSETS + (0 if group is None else len(group.offsets))
        portion.append(group_id)
        if items >= _SWEEP_OFFSETS:
            yield portion
            portion, items = [], 0
    if portion:
        yield portion


def group_bounds(config: BrokerConfig) -> GroupBounds:
    return GroupBounds(
        members_max=config.group_members_count_max,
        members_bytes_max=config.group_members_bytes_max,
        members_per_client_max=config.group_members_per_client_max,
        offsets_max=config.group_offsets_count_max,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
    )


def group_rules(config: BrokerConfig, *, broker_count: int = 1) -> GroupRules:
    delay_ms = config.group_initial_rebalance_delay_ms
    if delay_ms < 0:  # a single broker is mostly used for trying things out, where a delay is a nuisance
        delay_ms = 0 if broker_count <= 1 else SEVERAL_BROKERS_DELAY_MS
    return GroupRules(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=delay_ms,
        max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
    )


def _placement_of(topic: Topic) -> Placement | Refused:
    placement = find_placement(topic.configs)
    if placement is not None:
        return placement
    found = f"{topic.name}: expected a known {GROUP_PLACEMENT}, found {topic.configs[GROUP_PLACEMENT]!r}"
    _log.error("%s; no group is served: was the root used by a newer version?", found)
    return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, found)


@functools.lru_cache(maxsize=65_536)
def _partition_of(group_id: str, count: int, placement: Placement) -> int:
    """Remembered: the hash is computed letter by letter, and heartbeats of the same groups come for ever."""
    return coordinator_partition(group_id, count, placement)
