"""Promises of a consumer group, each a class: it hears every record of the coordinator's log and every processed
record, and is asked after every event, and once more at the end."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bus.consumer_groups.decisions import decide
from bus.consumer_groups.records import GroupStored, LoggedRecord, OffsetCommitted
from bus.consumer_groups.requests import OffsetCommit, OffsetsCommitted
from bus.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.group_process import Process
    from tests.simulation.group_world import World

# A join waits for the others, a sync for the leader, each as long as a rebalance may take, the first one somewhat more.
REQUEST_MAX_S = 60.0


class Invariant:
    def __init__(self, world: World) -> None:
        self.world = world

    def on_record(self, record: LoggedRecord) -> None: ...

    def on_processed(self, partition: TopicPartition, begin: int, end: int) -> None: ...

    def check(self) -> None: ...

    def check_end(self) -> None: ...


class OneOwnerPerGeneration(Invariant):
    """The coordinator takes commits for a partition from at most one of the processes that believe to own it."""

    def check(self) -> None:
        owners: dict[TopicPartition, list[Process]] = defaultdict(list)
        for process in self.world.running():
            for partition in process.membership.owned:
                owners[partition].append(process)
        for partition, processes in owners.items():
            if len(processes) > 1:
                accepted = [process.name for process in processes if self._may_commit(process)]
                assert len(accepted) <= 1, f"{partition} is owned by {' and '.join(accepted)}"

    def _may_commit(self, process: Process) -> bool:
        shard, generation = self.world.coordinator.shard, process.membership.generation
        group = None if shard is None else shard.states.get(self.world.group_id)
        if group is None or generation.id < 0:
            return False
        command = OffsetCommit(
            self.world.group_id, generation.id, generation.member_id, process.config.group_instance_id, ()
        )
        (reply,) = decide(
            group,
            command,
            request_id=0,
            rules=self.world.coordinator.rules,
            now_ms=self.world.coordinator.now_ms(),
        ).replies
        return isinstance(reply.answer, OffsetsCommitted)


class NoStaleCommitVisible(Invariant):
    """An offset in the log was committed by a member of the generation that the log had then, for a partition that no
    other member of it was given. Every commit says in its metadata who sent it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._stored: GroupStored | None = None

    def on_record(self, record: LoggedRecord) -> None:
        if isinstance(record, GroupStored):
            self._stored = record
        elif isinstance(record, OffsetCommitted):
            member_id, generation, _ = record.metadata.rsplit("|", 2)
            stored = self._stored
            assert stored is not None, f"{record} was committed before there was a generation"
            found = f"{member_id} of generation {generation} committed {record.partition} to {record.offset}"
            members = {member.member_id: member for member in stored.members}
            assert int(generation) == stored.generation, f"{found} in generation {stored.generation}"
            assert member_id in members, f"{found}; the members are {sorted(members)}"
            for member in stored.members:
                is_other = member.member_id != member_id and record.partition in member.assignment.partitions
                assert not is_other, f"{found}; it is {member.member_id}'s"


class OffsetsNeverGoBackByThemselves(Invariant):
    """A committed offset is lower than the one before only if the network held back a request of an old stream."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._offsets: dict[TopicPartition, tuple[int, str]] = {}

    def on_record(self, record: LoggedRecord) -> None:
        if isinstance(record, OffsetCommitted):
            before, by = self._offsets.get(record.partition, (0, "nobody"))
            serial = int(record.metadata.rsplit("|", 1)[1])
            self._offsets[record.partition] = record.offset, record.metadata
            assert record.offset >= before or serial in self.world.late_serials, (
                f"{record.partition} went from {before} (by {by}) to {record.offset} (by {record.metadata})"
            )

    def check(self) -> None:
        """Memory says what the log says, after every restart as well."""
        shard = self.world.coordinator.shard
        if shard is None or shard.refusal is not None:
            return
        group = shard.states.get(self.world.group_id)
        for partition, stored in ({} if group is None else group.offsets).items():
            assert stored.metadata in self.world.committed_by[partition], f"{stored} is nowhere in the log"


class CooperativeRevokesFirst(Invariant):
    """When an assignment is in the log, no member that has joined for that generation owns what another one gets."""

    def on_record(self, record: LoggedRecord) -> None:
        if not isinstance(record, GroupStored):
            return
        given = {partition: member.member_id for member in record.members for partition in member.assignment.partitions}
        members = {member.member_id for member in record.members}
        for process in self.world.running():
            generation = process.membership.generation
            if generation.id != record.generation or generation.member_id not in members:
                continue
            for partition in process.membership.owned:
                owner = given.get(partition, generation.member_id)
                assert owner == generation.member_id, (
                    f"generation {record.generation} gives {partition} to {owner}, but {process.name} "
                    f"({generation.member_id}) has not given it up"
                )


class NoRecordSkipped(Invariant):
    """Whoever begins somewhere in a partition begins where everything before has been processed, and commits no more
    than that."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.processed: dict[TopicPartition, int] = defaultdict(int)  # all records below

    def on_processed(self, partition: TopicPartition, begin: int, end: int) -> None:
        assert begin <= self.processed[partition], (
            f"{partition}: records from {self.processed[partition]} to {begin} were skipped"
        )
        self.processed[partition] = max(self.processed[partition], end)

    def on_record(self, record: LoggedRecord) -> None:
        if isinstance(record, OffsetCommitted):
            done = self.processed[record.partition]
            assert record.offset <= done, f"{record.partition} is committed to {record.offset}, processed to {done}"


class EveryRequestAnswered(Invariant):
    """No request that reached a coordinator waits longer than the group may make it wait."""

    def check(self) -> None:
        opened = self.world.coordinator.open
        oldest = next(iter(opened.values()), None)
        if oldest is not None:
            since, method, command = oldest
            assert self.world.now - since <= REQUEST_MAX_S, f"{method} of {since:.3f} has no answer: {command}"


class EveryLiveMemberEndsAssigned(Invariant):
    """Soon after the last fault the group is the processes that run, and each partition has one of them."""

    def check_end(self) -> None:
        why = self.why_unsettled()
        assert why is None, why

    def why_unsettled(self) -> str | None:
        world = self.world
        live = [process for process in world.running() if process.is_consuming]
        for process in live:
            if not process.is_settled:
                machine = process.membership
                return f"{process.name} is {machine.phase.value}, rejoining: {machine.is_rejoining()}"
        shard = world.coordinator.shard
        group = None if shard is None else shard.states.get(world.group_id)
        if group is None:
            return None if not live else "there is no group"
        expected = {process.membership.generation for process in live}
        found = {(group.generation, member_id) for member_id in group.members}
        if found != expected:
            return f"expected the members {expected}, found {found} in state {group.state.value}"
        return self._why_unowned(live)

    def _why_unowned(self, live: list[Process]) -> str | None:
        owned = sorted(partition for process in live for partition in process.membership.owned)
        topics = {topic for process in live for topic in process.membership.topics or ()}
        wanted = sorted(
            TopicPartition(topic, number) for topic in topics for number in range(self.world.partition_counts[topic])
        )
        return None if owned == wanted else f"expected {wanted} to be owned, found {owned}"


INVARIANTS = (
    OneOwnerPerGeneration,
    NoStaleCommitVisible,
    OffsetsNeverGoBackByThemselves,
    CooperativeRevokesFirst,
    NoRecordSkipped,
    EveryRequestAnswered,
    EveryLiveMemberEndsAssigned,
)
