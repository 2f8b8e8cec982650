"""A group of consumers against its coordinator and a network, under virtual time.

The members are the real `Membership`, `OffsetCommits` and assignors (group_process.py), the coordinator is the real
shard with the real rules and the real wire values (coordinator_model.py); threads, gRPC, tables and the clock are
replaced. One seed decides everything that happens, so a failing seed can be run again.

Fault model: the network's is in group_network.py, the coordinator's in coordinator_model.py. Processes die and come
back, freeze for longer than their session, hang for longer than max.poll.interval.ms, take their time in callbacks,
leave, change what they subscribe to; static ones come back under their instance id, or a twin takes it while they
still run. Topics get partitions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any

from bus.client.group.membership import Assign, Lead, Lose, Revoke
from bus.consumer_groups.group import GroupRules
from bus.consumer_groups.records import GroupStored, GroupTombstone, LoggedRecord, OffsetCommitted, OffsetTombstone
from bus.errors import BusError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from tests.simulation import world
from tests.simulation.coordinator_model import Coordinator
from tests.simulation.group_invariants import INVARIANTS, EveryLiveMemberEndsAssigned
from tests.simulation.group_process import Habit, Process

_BRIEF_MAX = 240
# What is of no interest once the faults are over; None answers a heartbeat, and a dict a commit.
_DAILY = (pb.OffsetCommitRequest, OffsetCommitted, dict, type(None))
# Longer than everything that the past may have left to wait for, one after another: a hang, a freeze, a join that is
# given up after max.poll.interval.ms and some seconds, a rebalance without somebody, a session, a first join.
SETTLE_MAX_S = 180.0


@dataclass(frozen=True)
class Faults:
    """Chances of one in so many; 0: never."""

    lost_request: int = 15
    doubled_request: int = 12
    lost_answer: int = 15
    doubled_answer: int = 12
    broken_stream: int = 40
    silent_stream: int = 80
    late_request: int = 3  # of those that were on a stream when it broke
    lost_notice: int = 4
    doubled_notice: int = 6
    disk_before: int = 40
    disk_after: int = 40
    crash_in_append: int = 60
    load: int = 4
    slow_callback: int = 20
    failed_metadata: int = 10


NO_FAULTS = Faults(**{field.name: 0 for field in fields(Faults)})


class World(world.SimulatedWorld):
    group_id = "g"

    def __init__(self, seed: int, faults: Faults) -> None:
        super().__init__(seed)
        self.faults = faults
        self.partition_counts = {"t": 4, "u": 2}
        self.processes: list[Process] = []
        self.late_serials: set[int] = set()  # of commits that arrived after their stream was given up
        self.last_serial = 0
        self.committed_by: dict[TopicPartition, set[str]] = defaultdict(set)  # metadata of all that was in the log
        self.processed: dict[TopicPartition, list[int]] = defaultdict(list)
        self.invariants = [invariant(self) for invariant in INVARIANTS]
        self._numbers = itertools.count(1)
        rules = GroupRules(
            min_session_timeout_ms=1_000,
            initial_rebalance_delay_ms=self.random.choice((0, 1_000)),
            new_member_join_timeout_ms=20_000,
        )
        self.coordinator = Coordinator(self, rules)
        self.coordinator.start()

    @property
    def now_ms(self) -> float:
        """The time by the clock of the clients' machines."""
        return self.now * 1000

    def records_there(self) -> int:
        return self.random.choice((0, 0, 1, 2, 5))

    # ------------------------------------------------------------ what is seen

    def note(self, who: str, what: str, about: Any = "") -> None:
        if not (self.is_healed and isinstance(about, _DAILY)):
            super().note(who, what, about)

    def brief(self, about: Any) -> str:
        return _brief(about)

    def check(self) -> None:
        for invariant in self.invariants:
            invariant.check()

    def on_record(self, record: LoggedRecord) -> None:
        self.note("log", "has", record)
        if isinstance(record, OffsetCommitted):
            self.committed_by[record.partition].add(record.metadata)
        try:
            for invariant in self.invariants:
                invariant.on_record(record)
        except AssertionError as error:  # the shard would take it for a fault of the disk
            self.fail(error)

    def on_processed(self, process: Process, partition: TopicPartition, begin: int, end: int) -> None:
        self.processed[partition] += range(begin, end)
        for invariant in self.invariants:
            invariant.on_processed(partition, begin, end)

    # ------------------------------------------------------------ processes

    def running(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def begin(self, habit: Habit) -> Process:
        process = Process(self, f"p{next(self._numbers)}", habit)
        self.note(process.name, "begins", habit)
        self.processes.append(process)
        return process

    def close(self, process: Process) -> None:
        self.note(process.name, "closes")
        process.is_closing = True

    def add_partition(self, topic: str) -> None:
        self.note("topic", f"{topic} gets a partition")
        self.partition_counts[topic] += 1

    # ------------------------------------------------------------ the run

    async def settle(self) -> None:
        """The faults end; the group has to come to rest, and to stay there."""
        self.note("world", "heals")
        self.is_healed = True
        (liveness,) = [found for found in self.invariants if isinstance(found, EveryLiveMemberEndsAssigned)]
        deadline = self.now + SETTLE_MAX_S
        calm_since = self.now
        while self.now < deadline and self.now - calm_since < 15.0:
            await asyncio.sleep(1.0)
            if liveness.why_unsettled() is not None:
                calm_since = self.now
        for invariant in self.invariants:
            invariant.check_end()


def simulate(seed: int, faults: Faults, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """See `world.simulate`."""
    return world.simulate(seed, lambda seed: World(seed, faults), scenario)


def _brief(about: Any) -> str:
    match about:
        case str():
            return about
        case BusError():
            return f"{about.code.name} {about}"
        case OffsetCommitted():
            return f"{about.partition} at {about.offset} of {about.metadata}"
        case GroupStored():
            given = {
                member.member_id: " ".join(map(str, member.assignment.partitions)) or "nothing"
                for member in about.members
            }
            return f"generation {about.generation} {about.state}: {given}"
        case OffsetTombstone() | GroupTombstone() | Habit() | Revoke() | Lose() | Lead() | Assign():
            return str(about)
        case _:
            text = " ".join(str(about).split()).replace('group_id: "g" ', "")
            return f"{type(about).__name__} {text}"[:_BRIEF_MAX]
