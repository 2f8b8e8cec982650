"""Any run of calls, silences, restarts and expiries on a group: owners, commits and generations keep their promises.

Clients here do what Kafka's do, but at any time, late, twice, or with what they knew before; a coordinator may crash
between any two calls. What the machine watches by itself is in `GroupBench.check`; below, each promise has its name. At
the end all clients behave, and every one that may be a member must get an assignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus.consumer_groups.group import GroupRules, GroupState
from bus.consumer_groups.requests import (
    Assignment,
    CommittedOffset,
    DeleteGroup,
    GroupAnswer,
    GroupProtocol,
    Heartbeat,
    Joined,
    JoinGroup,
    JoinRefused,
    LeaveGroup,
    LeavingMember,
    MembersRemoved,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetToCommit,
    Synced,
    SyncGroup,
)
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench

SESSION_MS = 10_000
REBALANCE_MS = 30_000
ROUNDS = 30  # of three seconds: longer than whatever the past may have left to wait for, but for a first join
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
OTHER = TopicPartition("audit", 0)
CLIENTS = range(5)
INSTANCES = {2: "desk", 3: "desk", 4: "till"}  # clients 2 and 3 are twins
PROTOCOLS = (
    (GroupProtocol("range", b"r", ("orders",)), GroupProtocol("sticky", b"s", ("orders",))),
    (GroupProtocol("sticky", b"s", ("orders",)),),
    (GroupProtocol("sticky", b"t", ("orders", "audit")), GroupProtocol("range", b"r", ("orders", "audit"))),
)


@dataclass
class Client:
    """One process's knowledge of its membership."""

    number: int
    protocols: tuple[GroupProtocol, ...] = PROTOCOLS[0]
    member_id: str = ""
    generation: int = -1
    joined: Joined | None = None  # and not synced since
    owned: tuple[TopicPartition, ...] = ()
    waiting: int | None = None  # a request
    has_to_join: bool = True
    is_out: bool = False  # fenced, or the group is full: it gives up
    before: list[tuple[str, int]] = field(default_factory=list)  # who it was

    @property
    def instance_id(self) -> str | None:
        return INSTANCES.get(self.number)

    def forget(self) -> None:
        self.before.append((self.member_id, self.generation))
        self.member_id, self.generation, self.joined, self.owned = "", -1, None, ()
        self.has_to_join = True


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = GroupBench()
        self.clients = [Client(number) for number in CLIENTS]
        self.newest_generation = 0
        self.owners: dict[int, dict[TopicPartition, str]] = {}  # generation -> partition -> member, as they were told
        self.successors: dict[str, str] = {}  # a static member id -> the one that took its place
        self.offsets: dict[TopicPartition, int] = {}

    @initialize(max_size=st.sampled_from([2, 100]), delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, max_size: int, delay_ms: int) -> None:
        self.bench.rules = GroupRules(max_size=max_size, initial_rebalance_delay_ms=delay_ms)

    # ---------------------------------------------------------------- what clients do

    def client_command(self, client: Client) -> JoinGroup | SyncGroup | Heartbeat:
        """The next call of a client that behaves."""
        if client.has_to_join:
            return JoinGroup(
                GROUP_ID,
                client.member_id,
                client.instance_id,
                f"client-{client.number}",
                "/127.0.0.1",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                client.protocols,
            )
        if client.joined is not None:
            joined = client.joined
            return SyncGroup(
                GROUP_ID,
                client.generation,
                client.member_id,
                client.instance_id,
                joined.protocol_type,
                joined.protocol,
                {} if joined.skip_assignment else _assign(joined),
            )
        return Heartbeat(GROUP_ID, client.generation, client.member_id, client.instance_id)

    def speak(self, client: Client) -> None:
        command = self.client_command(client)
        request_id = self.bench.ask(command, name=f"c{client.number}")
        client.waiting = request_id
        self.hear_all()

    def hear_all(self) -> None:
        for client in self.clients:
            if client.waiting in self.bench.answers:
                answer = self.bench.answers[client.waiting]
                client.waiting = None
                self.hear(client, answer)

    def hear(self, client: Client, answer: GroupAnswer) -> None:
        match answer:
            case Joined():
                self.note_generation(answer.generation)
                client.before.append((client.member_id, client.generation))
                client.member_id, client.generation, client.joined = answer.member_id, answer.generation, answer
                client.has_to_join = False
            case Synced(assignment=data):
                client.joined = None
                client.owned = tuple(PARTITIONS[number] for number in data)
                self.note_owner(client)
            case JoinRefused(refused, member_id) if refused.code is ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = member_id
            case JoinRefused(refused):
                self.hear_refusal(client, refused.code)
            case Refused(code):
                self.hear_refusal(client, code)

    def hear_refusal(self, client: Client, code: ErrorCode) -> None:
        match code:
            case ErrorCode.UNKNOWN_MEMBER_ID:
                client.forget()
            case (
                ErrorCode.FENCED_INSTANCE_ID | ErrorCode.GROUP_MAX_SIZE_REACHED | ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            ):
                client.forget()
                client.is_out = True
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                client.has_to_join, client.joined = True, None
            case _:
                raise AssertionError(f"a client that behaves is told {code.name}")

    @rule(number=st.sampled_from(CLIENTS))
    def speak_in_turn(self, number: int) -> None:
        client = self.clients[number]
        if client.waiting is None and not client.is_out:
            self.speak(client)

    @rule(numbers=st.sets(st.sampled_from(CLIENTS), min_size=1), rounds=st.integers(1, 4), calls=st.integers(1, 3))
    def go_on(self, numbers: set[int], rounds: int, calls: int) -> None:
        """Some clients behave for a while, and so come far."""
        for _ in range(rounds):
            self.speak_all([client for client in self.clients if client.number in numbers], calls)
            self.bench.wait(3_000)
            self.hear_all()

    def speak_all(self, clients: Iterable[Client], calls: int = 3) -> None:
        for client in clients:
            for _ in range(calls):
                if client.waiting is None and not client.is_out:
                    self.speak(client)

    @rule(number=st.sampled_from(CLIENTS))
    def repeat(self, number: int) -> None:
        """The client lost patience and sends again what it waits for."""
        client = self.clients[number]
        if client.waiting is not None:
            self.speak(client)

    @rule(number=st.sampled_from(CLIENTS))
    def restart(self, number: int) -> None:
        client = self.clients[number]
        client.forget()
        client.waiting, client.is_out = None, False

    @rule(number=st.sampled_from(CLIENTS), protocols=st.sampled_from(PROTOCOLS))
    def change_subscription(self, number: int, protocols: tuple[GroupProtocol, ...]) -> None:
        client = self.clients[number]
        if client.waiting is None:
            client.protocols, client.has_to_join, client.joined = protocols, True, None

    @rule(number=st.sampled_from(CLIENTS), by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        client = self.clients[number]
        if client.waiting is not None:
            return
        is_by_instance = by_instance and client.instance_id is not None
        leaving = LeavingMember("" if is_by_instance else client.member_id, client.instance_id)
        answer = self.bench.answer(LeaveGroup(GROUP_ID, (leaving,)))
        assert isinstance(answer, (MembersRemoved, Refused))
        client.forget()
        self.hear_all()

    # ---------------------------------------------------------------- offsets

    @rule(number=st.sampled_from(CLIENTS), partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 9))
    def commit(self, number: int, partition: TopicPartition, offset: int) -> None:
        client = self.clients[number]
        self.commit_as(client.member_id, client.generation, client.instance_id, partition, offset)

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 9))
    def commit_as_zombie(self, data: st.DataObject, partition: TopicPartition, offset: int) -> None:
        zombies = [identity for client in self.clients for identity in client.before if identity[0]]
        if zombies:
            member_id, generation = data.draw(st.sampled_from(zombies))
            self.commit_as(member_id, generation, None, partition, offset)

    @rule(offset=st.integers(0, 9))
    def commit_without_group(self, offset: int) -> None:
        self.commit_as("", -1, None, OTHER, offset)

    def commit_as(
        self, member_id: str, generation: int, instance_id: str | None, partition: TopicPartition, offset: int
    ) -> None:
        group = self.bench.group
        answer = self.bench.answer(
            OffsetCommit(GROUP_ID, generation, member_id, instance_id, (OffsetToCommit(partition, "id", offset),))
        )
        if isinstance(answer, OffsetsCommitted):
            self.offsets[partition] = offset
            self.check_only_the_current_generation_commits(
                member_id, generation, has_members=bool(group and group.members)
            )
        else:
            assert isinstance(answer, Refused)
        self.hear_all()

    def check_only_the_current_generation_commits(self, member_id: str, generation: int, *, has_members: bool) -> None:
        group = self.bench.group
        assert group is not None
        if has_members:
            assert member_id in group.members
            assert generation == group.generation == self.newest_generation
            assert group.state is not GroupState.COMPLETING_REBALANCE
        else:
            assert generation == -1

    @rule()
    def fetch(self) -> None:
        answer = self.bench.answer(OffsetFetch(GROUP_ID, None))
        assert isinstance(answer, OffsetsFetched)
        assert {offset.partition: offset.offset for offset in answer.offsets} == self.offsets
        one = self.bench.answer(OffsetFetch(GROUP_ID, (PARTITIONS[0],)))
        assert isinstance(one, OffsetsFetched)
        (found,) = one.offsets
        assert isinstance(found, CommittedOffset)
        assert found.offset == self.offsets.get(PARTITIONS[0], -1)

    @rule(partition=st.sampled_from([*PARTITIONS, OTHER]))
    def delete_offset(self, partition: TopicPartition) -> None:
        is_subscribed = self.bench.group is not None and partition.topic in self.bench.group.subscribed_topics()
        answer = self.bench.answer(OffsetDelete(GROUP_ID, (partition,)))
        if not isinstance(answer, Refused) and not is_subscribed:
            self.offsets.pop(partition, None)

    @rule(topic=st.sampled_from(["orders", "audit"]))
    def delete_topic(self, topic: str) -> None:
        self.bench.delete_topic(topic, "id")
        self.offsets = {of: offset for of, offset in self.offsets.items() if of.topic != topic}

    @rule()
    def expire(self) -> None:
        """Nothing is old enough, but a group that is empty and has no offsets goes."""
        self.bench.expire_offsets()
        if self.bench.group is None:
            assert not self.offsets
            self.forget_generations()

    @rule()
    def delete_group(self) -> None:
        has_members = self.bench.group is not None and self.bench.group.state is not GroupState.EMPTY
        answer = self.bench.answer(DeleteGroup(GROUP_ID))
        if has_members:
            assert isinstance(answer, Refused)
            assert answer.code is ErrorCode.NON_EMPTY_GROUP
        else:
            self.offsets = {}
            self.forget_generations()

    # ---------------------------------------------------------------- time and crashes

    @rule(ms=st.sampled_from([1, 2_999, 3_000, SESSION_MS, REBALANCE_MS, 300_000]))
    def wait(self, ms: int) -> None:
        self.bench.wait(ms)
        self.hear_all()

    @precondition(lambda self: self.bench.group is not None)
    @rule()
    def crash(self) -> None:
        self.bench.crash()
        loaded = self.bench.group
        self.forget_generations(begin=0 if loaded is None else loaded.generation)
        for client in self.clients:
            if client.waiting is not None:
                client.waiting, client.has_to_join, client.joined = None, True, None

    def forget_generations(self, begin: int = 0) -> None:
        """The generations after `begin` were never in the log: they may come again, with other members."""
        self.newest_generation = begin
        self.owners = {generation: owners for generation, owners in self.owners.items() if generation <= begin}

    # ---------------------------------------------------------------- promises

    def note_generation(self, generation: int) -> None:
        """The generation never goes back."""
        assert generation >= self.newest_generation
        self.newest_generation = generation

    def note_owner(self, client: Client) -> None:
        """At most one owner of a partition in a generation: the member that was told first, or its static successor."""
        assert client.generation == self.newest_generation, "an assignment of a generation that is over"
        owners = self.owners.setdefault(client.generation, {})
        for partition in client.owned:
            owner = owners.setdefault(partition, client.member_id)
            assert self.bench.group is not None
            assert owner == client.member_id or owner not in self.bench.group.members
            owners[partition] = client.member_id

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        offsets = {} if self.bench.group is None else self.bench.group.offsets
        assert {of: stored.offset for of, stored in offsets.items()} == self.offsets

    def teardown(self) -> None:
        """Every live member ends with an assignment, and every partition with one owner."""
        self.bench.check()
        self.bench.check_the_history_makes_the_group()
        for client in self.clients:
            client.waiting = None if client.waiting not in self.bench.open else client.waiting
        for _ in range(ROUNDS):
            self.speak_all(self.clients)
            self.bench.wait(3_000)
            self.hear_all()
        self.bench.check_the_history_makes_the_group()
        group = self.bench.group
        live = [client for client in self.clients if not client.is_out]
        if not live:
            return
        assert group is not None
        assert group.state is GroupState.STABLE
        assert {client.member_id for client in live} == set(group.members)
        assert all(client.generation == group.generation and client.joined is None for client in live)
        assert sorted(partition for client in live for partition in client.owned) == PARTITIONS


def _assign(joined: Joined) -> dict[str, Assignment]:
    """Return a leader's assignment: each partition to one member, in turn."""
    numbers: dict[str, list[int]] = {member.member_id: [] for member in joined.members}
    for number in range(len(PARTITIONS) if numbers else 0):
        numbers[list(numbers)[number % len(numbers)]].append(number)
    return {
        member_id: Assignment(bytes(given), tuple(PARTITIONS[number] for number in given))
        for member_id, given in numbers.items()
    }


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=settings.default.max_examples * 3 // 5, stateful_step_count=40)
