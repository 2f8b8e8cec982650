"""Members of consumer groups by the thousand in one process: what a crowd of consumers says to its coordinator.

Speaks the wire as the SDK does (JoinGroup, SyncGroup, a GroupSession with heartbeats) without consuming anything, so
that a process can be ten thousand members. Assignments are a few opaque bytes. Who leads a group gives everybody some.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc

_CHANNELS = 16
_PROTOCOL = "bench"
_REBALANCING = (pb.ERROR_CODE_REBALANCE_IN_PROGRESS, pb.ERROR_CODE_ILLEGAL_GENERATION)
_LOADING = (
    pb.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    pb.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
    pb.ERROR_CODE_NOT_COORDINATOR,
)


class Crowd:
    """Connections for all members. `async with` closes them."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)]
        self._stubs: Sequence[Any] = [bus_pb2_grpc.BusStub(channel) for channel in self._channels]

    def stub(self, number: int) -> Any:
        return self._stubs[number % _CHANNELS]

    async def __aenter__(self) -> Crowd:
        await self.stub(0).FindCoordinator(pb.FindCoordinatorRequest(key="warm-up"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()


class Member:
    """One member. `stable_at` is when it last got its assignment, by `time.perf_counter`."""

    def __init__(self, crowd: Crowd, group_id: str, number: int) -> None:
        self._stub = crowd.stub(number)
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1
        self.stable_at = 0.0
        self._is_told = asyncio.Event()  # that the group rebalances
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._session: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Until it has an assignment."""
        while True:
            answer = await self._stub.JoinGroup(
                pb.JoinGroupRequest(
                    group_id=self.group_id,
                    member_id=self.member_id,
                    session_timeout_ms=45_000,
                    rebalance_timeout_ms=60_000,
                    protocol_type=_PROTOCOL,
                    protocols=[pb.GroupProtocol(name=_PROTOCOL, metadata=b"metadata")],
                    client_id="bench",
                )
            )
            is_out = answer.error_code == pb.ERROR_CODE_UNKNOWN_MEMBER_ID
            self.member_id = "" if is_out else answer.member_id or self.member_id
            if answer.error_code in _LOADING:
                await asyncio.sleep(0.05)
            if answer.error_code:
                continue
            self.generation = answer.generation
            self._is_told.clear()
            synced = await self._stub.SyncGroup(
                pb.SyncGroupRequest(
                    group_id=self.group_id,
                    generation=self.generation,
                    member_id=self.member_id,
                    assignments=[
                        pb.MemberAssignment(member_id=other.member_id, assignment=b"assignment")
                        for other in answer.members
                    ],
                )
            )
            if not synced.error_code:
                self.stable_at = time.perf_counter()
                return
            if synced.error_code not in _REBALANCING:
                raise RuntimeError(f"SyncGroup: {synced.error_message}")

    async def live(self, heartbeat_s: float) -> None:
        """Joins, then heartbeats for ever; joins again when it is told to."""
        await self.join()
        self._session = self._session or asyncio.ensure_future(self._hear(self._stub.GroupSession(self._say())))
        while True:
            await self._requests.put(
                pb.GroupSessionRequest(
                    correlation_id=1,
                    heartbeat=pb.HeartbeatRequest(
                        group_id=self.group_id, generation=self.generation, member_id=self.member_id
                    ),
                )
            )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_told.wait(), heartbeat_s)
                await self.join()

    async def _say(self) -> AsyncIterator[Any]:
        while True:
            yield await self._requests.get()

    async def _hear(self, answers: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for answer in answers:
                if answer.heartbeat.error_code in _REBALANCING:
                    self._is_told.set()

    async def leave(self) -> None:
        await self._stub.LeaveGroup(
            pb.LeaveGroupRequest(group_id=self.group_id, members=[pb.LeavingMember(member_id=self.member_id)])
        )

    def end(self) -> None:
        if self._session is not None:
            self._session.cancel()


class Committer:
    """Offset commits of one consumer that is no member, on a stream of its own; several may be under way."""

    def __init__(self, crowd: Crowd, number: int, group_id: str) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._last_id = 0
        self._group_id = group_id
        self._hearing = asyncio.ensure_future(self._hear(crowd.stub(number).GroupSession(self._say())))

    def commit(self, topic: str, partition: int, offset: int) -> asyncio.Future[None]:
        self._last_id += 1
        answer = self._waiting[self._last_id] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(
            pb.GroupSessionRequest(
                correlation_id=self._last_id,
                offset_commit=pb.OffsetCommitRequest(
                    group_id=self._group_id,
                    generation=-1,
                    partitions=[
                        pb.OffsetCommitPartition(topic=topic, partition=partition, offset=offset, leader_epoch=-1)
                    ],
                ),
            )
        )
        return answer

    async def _say(self) -> AsyncIterator[Any]:
        while True:
            yield await self._requests.get()

    async def _hear(self, answers: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for answer in answers:
                waiting = self._waiting.pop(answer.correlation_id)
                (partition,) = answer.offset_commit.partitions
                if partition.error_code:
                    waiting.set_exception(RuntimeError(partition.error_message))
                else:
                    waiting.set_result(None)

    def end(self) -> None:
        self._hearing.cancel()
