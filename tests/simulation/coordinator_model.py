"""The coordinator of a simulated group: the real shard and the real wire values, on a log in memory that outlives it.

Faults: an append fails before or after its commit, the process dies before or after it, or at any other time; a load is
slow, or fails at first. A restart forgets all but the log, and the coordinator is found at another address.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from bus.broker_api.groups import as_seen, commit_of, with_topic_id
from bus.broker_api.requests import Caller
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import GroupBounds, GroupTotals
from bus.consumer_groups.decisions import GroupMachine
from bus.consumer_groups.group import Group, GroupRules, Notice
from bus.consumer_groups.loading import read_groups
from bus.consumer_groups.records import LoggedRecord, encode_record
from bus.consumer_groups.requests import GroupAnswer, GroupCommand
from bus.errors import ErrorCode, Refused, StorageFault
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.machine import Loaded
from bus.model import PLAINTEXT, BrokerEndpoint, TopicPartition
from bus.ports import KeyedRow
from bus.runtime.coordinators.group_coordinator import GroupShard, heartbeat
from bus.runtime.coordinators.log import PreparedRecords
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from tests.simulation.group_world import World

_CALLER = Caller("ipv4:127.0.0.1:5000", "/127.0.0.1", "request")

Reply = Callable[[Any], None]


class Coordinator:
    """`records` is its log. Requests to a `life` that is over go nowhere."""

    def __init__(self, world: World, rules: GroupRules) -> None:
        self._world = world
        self.rules = rules
        self.records: list[LoggedRecord] = []
        self.rows: list[KeyedRow] = []
        self.life = 0
        self.shard: GroupShard | None = None
        self.open: dict[int, tuple[float, str, Any]] = {}  # requests without an answer
        self._numbers = itertools.count(1)
        self._listeners: dict[tuple[str, str], Callable[[Refused], None]] = {}
        self._connections: dict[Callable[[], None], None] = {}  # in the order in which they came
        self._tasks = TaskScope("coordinator")

    @property
    def address(self) -> str:
        return f"c{self.life}:1"

    # ------------------------------------------------------------ lives

    def start(self) -> None:
        self._tasks = TaskScope(f"coordinator-{self.life}")
        self.shard = CoordinatorShard(
            GroupMachine(self.rules),
            cast(Any, _Log(self, self._world, self.life)),
            GroupTotals(GroupBounds()),
            clock=self,
            tasks=self._tasks,
            commit_slots=asyncio.Semaphore(1),
            on_notice=self._on_notice,
        )

    def now_ms(self) -> int:
        return 1_000_000 + int(self._world.now * 1000)

    def monotonic_ms(self) -> int:
        return int(self._world.now * 1000)

    def crash(self, down_s: float) -> None:
        """Memory and connections are gone; what is in the log stays."""
        if self.shard is None:
            return
        self._world.note("coordinator", f"crashes, is away for {down_s:.3f} s")
        self.life += 1
        self.open.clear()
        self._listeners.clear()
        self.shard.close()
        self.shard = None
        self._world.spawn(self._tasks.cancel())
        connections, self._connections = self._connections, {}
        for break_off in connections:
            break_off()
        self._world.at(down_s, self.start)

    def stop(self, down_s: float) -> None:
        """Stop as at a shutdown: waiting callers are answered first."""
        if self.shard is not None:
            life = self.life
            self.shard.close()
            self._world.at(0.05, lambda: self.crash(down_s) if life == self.life else None)

    def connect(self, on_crash: Callable[[], None]) -> int | None:
        """The life that was reached, if any was."""
        if self.shard is None:
            return None
        self._connections[on_crash] = None
        return self.life

    def disconnect(self, on_crash: Callable[[], None]) -> None:
        self._connections.pop(on_crash, None)

    # ------------------------------------------------------------ calls

    def ask(self, method: str, message: Any, reply: Reply) -> asyncio.Future[GroupAnswer] | None:
        """`reply` comes with the response. The future is for a client that goes away."""
        match method:
            case "FindCoordinator":
                host, port = self.address.split(":")
                reply(calls.encode_coordinator(BrokerEndpoint(1, host, int(port)), PLAINTEXT))
                return None
            case "JoinGroup":
                join = calls.decode_join(message, _CALLER)
                return self._submit(method, join, reply, lambda answer: calls.encode_join(message, answer))
            case "SyncGroup":
                return self._submit(method, calls.decode_sync(message, None), reply, calls.encode_sync)
            case "LeaveGroup":
                leave = calls.decode_leave(message)
                return self._submit(method, leave, reply, lambda answer: calls.encode_leave(message, answer))
            case "OffsetCommit":
                found = [with_topic_id(item, cast(Any, self)) for item in calls.offsets_of(message)]
                commit = commit_of(calls.member_of(message), found)
                return self._submit(
                    method, commit.command, reply, lambda answer: calls.encode_commit(message, commit.outcomes(answer))
                )
            case "OffsetFetch":
                (group,) = message.groups
                fetch = calls.decode_offset_fetch(group)
                return self._submit(method, fetch, reply, lambda answer: self._offsets(fetch, answer))
            case _:
                raise AssertionError(f"nobody knows the call {method}")

    def _offsets(self, fetch: rq.OffsetFetch, answer: GroupAnswer) -> pb.OffsetFetchGroupResponse:
        group = pb.OffsetFetchGroupResponse(group_id=fetch.group_id)
        if isinstance(answer, Refused):
            with_error(group, answer)
        else:
            assert isinstance(answer, rq.OffsetsFetched)
            seen = (as_seen(committed, fetch, cast(Any, self)) for committed in answer.offsets)
            group.offsets.extend(calls.encode_committed(committed) for committed in seen if committed is not None)
        return group

    def heartbeat(self, message: pb.HeartbeatRequest, tell: Callable[[Refused], None]) -> pb.HeartbeatResponse:
        assert self.shard is not None
        command = calls.decode_heartbeat(message)
        self._listeners[command.group_id, command.member_id] = tell
        return calls.encode_heartbeat(heartbeat(self.shard, command))

    def _submit(
        self, method: str, command: GroupCommand | Refused, reply: Reply, encode: Callable[[GroupAnswer], Any]
    ) -> asyncio.Future[GroupAnswer]:
        assert self.shard is not None
        assert not isinstance(command, Refused), f"{method}: {command}"
        number, life = next(self._numbers), self.life
        is_first = isinstance(command, rq.JoinGroup) and not command.member_id
        new_id = f"{command.client_id}-{number}" if is_first and isinstance(command, rq.JoinGroup) else ""
        self.open[number] = (self._world.now, method, command)

        def answered(future: asyncio.Future[GroupAnswer]) -> None:
            if life != self.life:
                return
            del self.open[number]
            if not future.cancelled():
                self._check_rules_hold(method, command, future.result())
                reply(encode(future.result()))

        if isinstance(command, rq.JoinGroup):
            command = replace(command, new_member_id=new_id)
        future = self.shard.submit(command)
        future.add_done_callback(self._world.guarded(answered))
        return future

    def _check_rules_hold(self, method: str, command: Any, answer: GroupAnswer) -> None:
        refused = answer.refused if isinstance(answer, rq.JoinRefused) else answer
        if isinstance(refused, Refused):
            is_broken = refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert not is_broken, f"RulesNeverBreak: {method} {command}: {refused.message}"

    def _on_notice(self, notice: Notice) -> None:
        tell = self._listeners.get((notice.group_id, notice.member_id))
        if tell is not None:
            tell(notice.refused)

    # ------------------------------------------------------------ what the adapter asks of the cluster's state

    def leadership(self, partition: TopicPartition) -> object | None:
        return True if partition.partition < self._world.partition_counts.get(partition.topic, 0) else None

    @property
    def topics(self) -> dict[str, Any]:
        return {topic: SimpleNamespace(topic_id=f"id-of-{topic}") for topic in self._world.partition_counts}


class _Log:
    """The `CoordinatorLog` of one life of the coordinator."""

    name = "__consumer_offsets-0"
    stopped = None

    def __init__(self, coordinator: Coordinator, world: World, life: int) -> None:
        self._coordinator = coordinator
        self._world = world
        self._life = life

    @property
    def is_empty(self) -> bool:
        return not self._coordinator.rows

    def stop(self, reason: str) -> None:
        self._world.fail(AssertionError(f"the log cannot be read: {reason}"))

    async def load(self) -> Loaded[Group] | Refused:
        world = self._world
        await asyncio.sleep(world.random.choice((0.0, 0.01, world.random.uniform(0, 2.0))))
        if world.chance(world.faults.load):
            raise StorageFault("simulated")
        last: dict[bytes, KeyedRow] = {}
        for row in self._coordinator.rows:
            last.pop(row.key, None)
            last[row.key] = row
        loaded = read_groups(last.values(), now_ms=0)
        assert not loaded.faults, loaded.faults
        return loaded

    def approximate_bytes(self, records: Sequence[LoggedRecord]) -> int:
        return len(records)

    def log_lines(self, records: Sequence[LoggedRecord]) -> None: ...

    async def prepare(self, records: Sequence[LoggedRecord]) -> PreparedRecords:
        return PreparedRecords(cast(Any, tuple(records)), {})

    async def append(self, batch: Any) -> Refused | None:
        records: Sequence[LoggedRecord] = batch
        world, faults = self._world, self._world.faults
        await asyncio.sleep(world.random.choice((0.001, 0.002, world.random.uniform(0, 0.05))))
        if world.chance(faults.disk_before):
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "simulated, before the commit")
        if world.chance(faults.crash_in_append):
            return await self._die()
        self._write(records)
        if world.chance(faults.crash_in_append):
            return await self._die()
        if world.chance(faults.disk_after):
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "simulated, after the commit")
        return None

    def _write(self, records: Sequence[LoggedRecord]) -> None:
        assert self._life == self._coordinator.life, "a dead coordinator writes"
        for record in records:
            self._coordinator.rows.append(encode_record(record))
            self._coordinator.records.append(record)
            self._world.on_record(record)

    async def _die(self) -> Refused | None:
        self._coordinator.crash(self._world.down_s())
        await asyncio.sleep(3600)
        raise AssertionError("a dead coordinator goes on")
