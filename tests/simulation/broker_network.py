"""Calls and streams between programs and simulated brokers, with all that may happen to them.

The handlers are those that gRPC calls, from the bytes of a request to the bytes of its answer. A call may be lost on
its way there or back (soon noticed, or not before its timeout), and one that may be repeated may arrive twice. A stream
delivers in order until it breaks or falls silent; the broker hears of it later, and takes until then what was on its
way. Connections end with the broker's process. A client that gives up a call cancels it, at the await that it has
reached.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.logins import LoginApi
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.errors import BusError, ErrorCode, Refused
from bus.grpc_api.server.connections.logins import with_login
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.server.guards import CallsInFlight, OpenStreams, StreamRegistry
from bus.grpc_api.server.health import ReflectionServicer
from bus.grpc_api.server.service_door import ServiceDoor
from bus.grpc_api.server.servicers import BusServicer, ClusterServicer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import PLAINTEXT, SASL_PLAINTEXT
from bus.runtime.partitions.fetches import Stopping
from bus.security.users import Users
from tests.simulation.network import SimulatedCall, broken

if TYPE_CHECKING:
    from bus.model import BrokerEndpoint
    from tests.simulation.broker_world import BrokerLife, BrokerWorld, SimulatedBroker

_METHODS = {
    method.name: method for name in ("Bus", "Cluster") for method in pb.DESCRIPTOR.services_by_name[name].methods
}

# How long joins wait for other members; every other call that waits for its timeout waits no longer than this.
CALL_MAX_S = 60.0
# What a broker says twice to another one may come the second time when a life and a session are over.
_LATE_S_MAX = 10.0

Answer = Any  # a message of the contract, or a BusError


@dataclass(frozen=True, slots=True)
class UserLogin:
    """A login by PLAIN, which a client sends with each call."""

    user: str
    password: str

    @property
    def header(self) -> str:
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it leaves the broker. `request`: None on a stream."""

    life: BrokerLife
    method: str
    request: Any
    answer: Answer
    asked_at: float  # when the client sent it
    arrived_at: float  # at the broker
    applied_offset: int = 0  # of the metadata, when it arrived: the broker acts on no less
    user: str = ""  # who logged in for it
    users: Users | None = None  # as the broker knew them when it arrived


class Server:
    """The calls of one life of a broker."""

    def __init__(self, world: BrokerWorld, life: BrokerLife, stopping: Stopping) -> None:
        self._world = world
        self._life = life
        self.streams = StreamRegistry(stopping)
        self._doors: dict[str, ServiceDoor] = {}  # by the name of the listener; none: nothing listens
        self._logins: LoginApi | None = None  # of a broker that serves
        self._under_way: dict[asyncio.Task[None], tuple[float, str]] = {}  # since when, and what
        self._clients: dict[Callable[[], None], None] = {}  # what breaks off each connection

    def listen(self, identity: BrokerIdentity) -> None:
        for listener in self._life.config.serving_listeners:
            door = self._doors[listener.name] = ServiceDoor(self._life.config.socket_request_max_bytes, CallsInFlight())
            door.identify_as(identity)

    def serve(self, api: BrokerApi, peers: GrpcPeers) -> None:
        self._logins = api.logins
        for listener in self._life.config.serving_listeners:
            name = listener.name
            bus = BusServicer(api, self.streams, self._life.config, peers, name)
            reflection = ReflectionServicer(api, self.streams, OpenStreams(1), name)
            known = functools.partial(with_login, api=api.logins, listener=name, on_known=_note_nothing)
            recognise = known if listener.has_logins else None
            self._doors[name].open(bus, ClusterServicer(api, bus), reflection, recognise)

    def _find(self, method: str, listener: str = PLAINTEXT) -> grpc.RpcMethodHandler | None:
        service, door = _METHODS[method].containing_service.full_name, self._doors.get(listener)
        return None if door is None else door.find(f"/{service}/{method}")

    @property
    def users(self) -> Users | None:
        """The users as the broker knows them; None until it serves."""
        return None if self._logins is None else self._logins.users

    async def stop(self) -> None:
        """Stop like gRPC's server: accept nothing new, answer what was read."""
        self._doors.clear()
        await self.streams.drain()
        while self._under_way:
            await asyncio.wait(list(self._under_way), timeout=5.0)
            for task in self._under_way:
                task.cancel()
        self.break_off()

    def break_off(self) -> None:
        clients, self._clients = self._clients, {}
        for end in clients:
            end()

    def find_overdue(self) -> str | None:
        """A call that takes longer than any may."""
        for since, name in self._under_way.values():
            if not _METHODS[name].client_streaming and self._world.now - since > CALL_MAX_S:
                return f"{name} of {since:.3f} has no answer"
        return None

    def connect(self, on_end: Callable[[], None]) -> bool:
        """False: nothing listens there."""
        if not self._doors or self._life.is_over:
            return False
        self._clients[on_end] = None
        return True

    def disconnect(self, on_end: Callable[[], None]) -> None:
        self._clients.pop(on_end, None)

    def take_call(
        self,
        method: str,
        raw: bytes,
        reply: Callable[[Answer], None],
        *,
        asked_at: float,
        login: UserLogin | None = None,
    ) -> asyncio.Task[None] | None:
        """The task that answers; cancelling it is the client's going away."""
        handler = self._find(method, PLAINTEXT if login is None else SASL_PLAINTEXT)
        if handler is None:
            return None
        arrived_at, applied, users = self._world.now, self._life.applied_offset, self.users
        user = "" if login is None else login.user

        def tell(answer: Answer) -> None:
            if not self._life.is_over:
                asked = _METHODS[method].input_type._concrete_class.FromString(raw)
                answered = Answered(self._life, method, asked, answer, asked_at, arrived_at, applied, user, users)
                self._world.tell("on_answered", answered)
            reply(answer)

        return self._begin(self._serve(method, handler, raw, tell, login), method)

    async def _serve(
        self, method: str, handler: Any, raw: bytes, reply: Callable[[Answer], None], login: UserLogin | None
    ) -> None:
        context = Context(self._world, method, login=login)
        try:
            request = handler.request_deserializer(raw)
            if handler.response_streaming:
                async for answer in handler.stream_stream(_only(request), context):
                    last = answer
                reply(last)
                return
            answer = await handler.stream_unary(_only(request), context)
            serialized = answer if handler.response_serializer is None else handler.response_serializer(answer)
            reply(_METHODS[method].output_type._concrete_class.FromString(serialized))
        except grpc.aio.AbortError:
            assert context.error is not None, f"{method} was aborted without a status"
            reply(context.error)
        finally:
            context.end()

    def take_stream(self, method: str, stream: Stream) -> asyncio.Task[None] | None:
        handler = self._find(method)
        return None if handler is None else self._begin(self._serve_stream(method, handler, stream), method)

    async def _serve_stream(self, method: str, handler: Any, stream: Stream) -> None:
        def write(message: Any) -> None:
            raw = message if handler.response_serializer is None else handler.response_serializer(message)
            answer = _METHODS[method].output_type._concrete_class.FromString(raw)
            if not self._life.is_over:
                now = self._world.now
                self._world.tell("on_answered", Answered(self._life, method, None, answer, now, now))
            stream.deliver(answer)

        async def requests() -> AsyncIterator[Any]:
            while (raw := await stream.arrived.get()) is not None:
                yield handler.request_deserializer(raw)

        context = Context(self._world, method, write)
        try:
            await handler.stream_stream(requests(), context)
        except grpc.aio.AbortError:
            pass
        finally:
            context.end()
        stream.end_soon(context.error or broken("the stream has ended"))

    def _begin(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        task = self._life.run(coroutine, name)
        self._under_way[task] = self._world.now, name
        # Not in the context of the caller, which may be a life that stands still.
        task.add_done_callback(self._ended, context=self._life.context)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._life.is_over:
            self._world.fail(error)


async def _only(request: Any) -> AsyncIterator[Any]:
    yield request


class Context:
    """The part of `grpc.aio.ServicerContext` that handlers use."""

    def __init__(
        self,
        world: BrokerWorld,
        method: str,
        write: Callable[[Any], None] | None = None,
        login: UserLogin | None = None,
    ) -> None:
        self._world = world
        self._method = method
        self._write = write
        self._login = login
        self._on_end: list[Callable[[Any], object]] = []
        self.error: BusError | None = None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._login is None else (("authorization", self._login.header),)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._on_end.append(callback)

    async def write(self, message: Any) -> None:
        assert self._write is not None
        await asyncio.sleep(self._world.delay())
        self._write(message)

    async def abort(self, status: grpc.StatusCode, details: str) -> None:
        if status is grpc.StatusCode.UNAUTHENTICATED and self._login is not None:
            self.error = BusError(ErrorCode.SASL_AUTHENTICATION_FAILED, details)
            raise grpc.aio.AbortError
        if status is not grpc.StatusCode.UNAVAILABLE:
            self._world.fail(AssertionError(f"NoUnforeseenError: {self._method} ended with {status}: {details}"))
        self.error = broken(details)
        raise grpc.aio.AbortError

    def end(self) -> None:
        for callback in self._on_end:
            callback(self)


class Call(SimulatedCall):
    """One request to the broker at an address, and one answer: `on_answer` is called once."""

    def __init__(
        self,
        world: BrokerWorld,
        who: str,
        method: str,
        message: Any,
        on_answer: Callable[[Answer], None],
        *,
        timeout_s: float,
        is_repeatable: bool = True,
        late_s: float = 0.0,
        broker: SimulatedBroker | None = None,
        login: UserLogin | None = None,
        link: tuple[int, int] | None = None,
    ) -> None:
        """`broker`: any one, if none is given. `login`: by the listener where users log in. `link`: from broker to
        broker, where it may be cut on the way there, or on the way back. A closed address is closed to all callers."""
        super().__init__(world)
        self._world = world
        self._login = login
        self._link = link
        self._who = who
        self._method = method
        self._raw = message.SerializeToString()
        self._asked_at = world.now
        self._on_answer = on_answer
        broker = broker or world.any_broker()
        self._broker_id = broker.config.broker_id
        world.note(who, f"-> {broker.name} {method}", message)
        world.tell("on_asked", who, method, message)
        self._life = life = broker.life
        if life is None or not life.server.connect(self._break_off):
            self._fail_soon("nothing listens")
            return
        self._set_out(world.faults, timeout_s=timeout_s, is_repeatable=is_repeatable, late_s=late_s)

    def _arrive(self) -> None:
        if self._link in self._world.cut_links or self._is_closed():
            self._be_lost()
            return
        if self._life is not None and not self._life.is_over:
            task = self._life.server.take_call(
                self._method, self._raw, self._send_back, asked_at=self._asked_at, login=self._login
            )
            if task is not None:
                self._at_server.append(task)

    def _send_back(self, answer: Answer) -> None:
        is_cut = self._link is not None and self._link[::-1] in self._world.cut_links
        if is_cut or self._is_closed() or self._world.chance(self._world.faults.lost_answer):
            self._be_lost()
        elif self._life is not None and not self._life.is_over:
            self._world.at(self._world.delay(), lambda: self._end(answer))

    def _is_closed(self) -> bool:
        return self._broker_id in self._world.closed_addresses

    def _end(self, answer: Answer) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._life is not None:
            self._life.server.disconnect(self._break_off)
        self._world.note(self._who, f"<- {self._method}", answer)
        if isinstance(answer, BusError) and answer.code is ErrorCode.REQUEST_TIMED_OUT:
            self._world.tell("on_timed_out", self._who, self._method)
        self._on_answer(answer)


class Stream:
    """`on_answer` is called for each answer, `on_end` once."""

    def __init__(
        self,
        world: BrokerWorld,
        who: str,
        method: str,
        on_answer: Callable[[Any], None],
        on_end: Callable[[BusError], None],
        *,
        broker: SimulatedBroker,
    ) -> None:
        self._world = world
        self._who = who
        self._on_answer = on_answer
        self._on_end = on_end
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_over = False
        # Events of one moment come in any order; what a stream carries does not.
        self._sent: deque[bytes] = deque()
        self._answers: deque[Any] = deque()
        self._arrives_at = self._answers_at = 0.0
        self._is_silent = False
        self._is_swallowed = False  # nothing arrives, either way
        self._broker_id = broker.config.broker_id
        self._task: asyncio.Task[None] | None = None
        life = broker.life
        if self._swallow():
            if world.random.random() < 0.5:
                self.end_soon(broken("nothing is there"))
            return
        if life is not None and life.server.connect(self._break_off):
            self._life = life
            self._task = life.server.take_stream(method, self)
        if self._task is None:
            self.end_soon(broken("nothing listens"))

    def _swallow(self) -> bool:
        """Tell whether a network that lets nothing come in there has swallowed this connection by now."""
        self._is_swallowed = self._is_swallowed or self._broker_id in self._world.closed_addresses
        return self._is_swallowed

    def send(self, raw: bytes) -> None:
        world = self._world
        if self._task is None or self.is_over or self._swallow():
            return
        self._arrives_at = max(self._arrives_at, world.now + world.delay())
        self._sent.append(raw)
        world.at_time(self._arrives_at, lambda: self.arrived.put_nowait(self._sent.popleft()))
        if world.chance(world.faults.broken_stream):
            world.at(world.delay(), self._break_off)
        self._is_silent = self._is_silent or world.chance(world.faults.silent_stream)

    def deliver(self, message: Any) -> None:
        """From the broker."""
        if not self._is_silent and not self._swallow():
            self._answers_at = max(self._answers_at, self._world.now + self._world.delay())
            self._answers.append(message)
            self._world.at_time(self._answers_at, self._hand_over)

    def _hand_over(self) -> None:
        answer = self._answers.popleft()
        if not self.is_over:
            self._on_answer(answer)

    def finish(self) -> None:
        """No more requests."""
        self.is_over = True
        self.arrived.put_nowait(None)

    def cut(self) -> None:
        self._break_off()

    def _break_off(self) -> None:
        """The client sees it at once, the broker later."""
        if not self.is_over:
            self._world.note(self._who, "loses a stream")
            self.end_soon(broken())
            if self._task is not None:
                self._world.at(self._world.delay(), self._task.cancel)

    def end_soon(self, error: BusError) -> None:
        if not self.is_over:
            self.is_over = True
            self._world.at(self._world.delay(), lambda: self._on_end(error))


class PeerTransport:
    """Implements `bus.grpc_api.server.connections.peer_transport.Transport` for one life of a broker."""

    def __init__(self, world: BrokerWorld, life: BrokerLife) -> None:
        self._world = world
        self._life = life

    async def call(
        self,
        to: BrokerEndpoint,
        method: str,
        message: Any,
        *,
        timeout_s: float,
        due_s: float | None = None,
        again: Any = None,
        needs_login: bool = True,
    ) -> Any:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def take(found: Answer) -> None:
            if not answer.done():
                answer.set_result(found)

        name, broker = self._life.name, self._world.broker_at(to.port)
        is_repeatable = method != "Envelope"  # it may have a call of a client that is not
        call = Call(
            self._world,
            name,
            method,
            message,
            take,
            timeout_s=timeout_s,
            is_repeatable=is_repeatable,
            late_s=_LATE_S_MAX,
            broker=broker,
            link=(self._life.config.broker_id, to.broker_id),
        )
        try:
            found = await answer
        except asyncio.CancelledError:
            call.give_up()
            raise
        if not isinstance(found, BusError):
            return found
        code = ErrorCode.REQUEST_TIMED_OUT if found.code is ErrorCode.REQUEST_TIMED_OUT else ErrorCode.NETWORK_EXCEPTION
        return Refused(code, str(found))

    def suspect_all(self) -> None: ...

    async def close(self) -> None: ...


def _note_nothing(peer: str) -> None:
    """Nothing bounds what arrives by a connection here."""
