"""Calls and streams between a process and its coordinator, with all that may happen to them.

A call may be lost on its way there or back (soon noticed, or not before its timeout, or that of a question on its
connection), arrive twice, or be answered twice. A stream delivers in order until it breaks or falls silent; what was on
its way when it broke may arrive late. Connections end with the coordinator's process: nothing from before a crash
arrives after it. Notices may be lost, doubled and late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.client.connection.group_requests import OffsetCommit, decode_group_answer, encode_group_call
from bus.client.group.link import GroupRequest
from bus.errors import Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.simulation.network import SimulatedCall, broken

if TYPE_CHECKING:
    from tests.simulation.group_process import Process
    from tests.simulation.group_world import World


class Call(SimulatedCall):
    def __init__(self, world: World, process: Process, request: GroupRequest) -> None:
        super().__init__(world)
        self._world = world
        self._process = process
        self._request = request
        coordinator = world.coordinator
        self._life = coordinator.connect(self._break_off)
        if self._life is None or request.address not in (None, coordinator.address):
            self._fail_soon("nothing listens")
            return
        self._set_out(world.faults, timeout_s=request.timeout_ms / 1000)

    def _be_lost(self) -> None:
        super()._be_lost()
        patience_ms = self._request.patience_ms
        if patience_ms is not None:  # a question on its connection is lost, too
            self._world.at(2 * patience_ms / 1000, self._time_out)

    def _arrive(self) -> None:
        coordinator, request = self._world.coordinator, self._request
        if coordinator.shard is None or coordinator.life != self._life:
            return
        message = encode_group_call(request.call)
        self._world.note(self._process.name, "->", message)
        future = coordinator.ask(request.method, message, self._send_back)
        if future is not None:
            self._at_server.append(future)

    def _send_back(self, response: Any) -> None:
        world = self._world
        if world.chance(world.faults.lost_answer):
            self._be_lost()
            return
        if isinstance(response, pb.OffsetFetchGroupResponse):
            response = pb.OffsetFetchResponse(groups=[response])
        answer = decode_group_answer(self._request.call, response)
        world.at(world.delay(), lambda: self._answer(answer))
        if world.chance(world.faults.doubled_answer):
            world.at(world.delay() + world.delay(), lambda: self._answer(answer, is_double=True))

    def _end(self, answer: Any) -> None:
        self._answer(answer)

    def _answer(self, answer: Any, *, is_double: bool = False) -> None:
        if self._is_over and not is_double:
            return
        self._is_over = True
        self._world.coordinator.disconnect(self._break_off)
        self._process.take_answer(self._request, answer)


class Stream:
    """One GroupSession: heartbeats and commits out, answers and notices back."""

    def __init__(self, world: World, process: Process, address: str) -> None:
        self.address = address
        self.is_over = False
        self._world = world
        self._process = process
        self._life = world.coordinator.connect(self.cut)
        self._unanswered: dict[int, GroupRequest] = {}
        self._correlation_id = 0
        self._arrives_at = 0.0
        self._answers_at = 0.0
        self._is_silent = False
        if self._life is None or address != world.coordinator.address:
            self.cut()

    def send(self, request: GroupRequest) -> None:
        world = self._world
        self._correlation_id += 1
        number = self._correlation_id
        self._unanswered[number] = request
        if self.is_over:
            self._fail_unanswered()
            return
        message, serial = encode_group_call(request.call), 0
        if isinstance(request.call, OffsetCommit):
            message, serial = _signed(world, message)
        self._arrives_at = max(self._arrives_at, world.now + world.delay())
        world.at_time(self._arrives_at, lambda: self._arrive(number, request.method, message, serial))
        if world.chance(world.faults.broken_stream):
            world.at(world.delay(), self.cut)
        self._is_silent = self._is_silent or world.chance(world.faults.silent_stream)

    def _arrive(self, number: int, method: str, message: Any, serial: int) -> None:
        world = self._world
        if world.coordinator.shard is None or world.coordinator.life != self._life:
            return
        if self.is_over:
            if world.chance(world.faults.late_request):
                world.late_serials.add(serial)
                world.at(world.random.uniform(0, 8.0), lambda: self._serve(number, method, message))
            return
        self._serve(number, method, message)

    def _serve(self, number: int, method: str, message: Any) -> None:
        coordinator = self._world.coordinator
        if coordinator.shard is None or coordinator.life != self._life:
            return
        if method == "Heartbeat":
            self._send_back(number, coordinator.heartbeat(message, self._tell))
        else:
            self._world.note(self._process.name, "->", message)
            coordinator.ask(method, message, lambda answer: self._send_back(number, answer))

    def _send_back(self, number: int, answer: Any) -> None:
        if self._is_silent:
            return
        self._answers_at = max(self._answers_at, self._world.now + self._world.delay())
        self._world.at_time(self._answers_at, lambda: self._answer(number, answer))

    def _answer(self, number: int, answer: Any) -> None:
        request = None if self.is_over else self._unanswered.pop(number, None)
        if request is not None:
            self._process.take_answer(request, decode_group_answer(request.call, answer))

    def _tell(self, refused: Refused) -> None:
        world = self._world
        if self._is_silent or world.chance(world.faults.lost_notice):
            return
        for _ in range(2 if world.chance(world.faults.doubled_notice) else 1):
            world.at(world.delay(), lambda: None if self.is_over else self._process.take_notice())

    def cut(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._world.coordinator.disconnect(self.cut)
            self._fail_unanswered()

    def _fail_unanswered(self) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        for request in unanswered.values():
            self._world.at(self._world.delay(), lambda request=request: self._process.take_answer(request, broken()))


def _signed(world: World, message: pb.OffsetCommitRequest) -> tuple[pb.OffsetCommitRequest, int]:
    """Every commit says in its metadata who sent it, and which one it is."""
    world.last_serial += 1
    signed = pb.OffsetCommitRequest()
    signed.CopyFrom(message)
    for share in signed.partitions:
        share.metadata = f"{message.member_id}|{message.generation}|{world.last_serial}"
    return signed, world.last_serial
