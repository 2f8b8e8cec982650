"""The answers of a broker at its address: who it is from the start, and every call once it serves.

The controller that a broker registers with asks for it at the address that the broker advertises, so the broker has to
answer before it has joined. Guards one promise: until the door is open no other call reaches the broker; each is
refused with UNAVAILABLE, which clients take for a broker that is not there.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha import reflection_pb2

from bus.broker_api.logins import LOGIN_SECONDS_MAX
from bus.broker_api.pipeline import Stage, Wrap, assemble
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.grpc_api.server.connections.logins import WITHOUT_LOGIN
from bus.grpc_api.server.guards import CallsInFlight, of_one_request
from bus.grpc_api.server.peer_messages import IDENTITY
from bus.grpc_api.server.request_limits import control_reader, produce_reader
from bus.grpc_api.v1 import bus_pb2 as pb

BUS, CLUSTER = (pb.DESCRIPTOR.services_by_name[name] for name in ("Bus", "Cluster"))
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
# Their answers are large, and made as bytes at once: the generated code would copy them half a dozen times.
_SERIALIZED = ("Fetch", "FetchOnce")
# By whether the answers are a stream. The requests always are, for gRPC: see `of_one_request`.
_NEW_HANDLER = {False: grpc.stream_unary_rpc_method_handler, True: grpc.stream_stream_rpc_method_handler}
Handler = Callable[..., Any]
Recognise = Callable[[Handler, str], Handler]
Around = Callable[[Handler, MethodDescriptor], Handler]


class ServiceDoor(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`identify_as` once the broker's root is open, `open` once it serves."""

    def __init__(self, request_bytes_max: int, calls: CallsInFlight, recognise: Recognise | None = None) -> None:
        """`recognise`: what stands around each handler, of the method of this name, to find out who its caller is."""
        self._request_bytes_max = request_bytes_max
        self._recognise = recognise
        self._find_handler: Callable[[str], grpc.RpcMethodHandler | None] = lambda path: None
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}  # of calls that came
        self.calls = calls

    def identify_as(self, identity: BrokerIdentity) -> None:
        starting = _StartingServicer(identity)
        self._let(starting, starting, starting, self._around_unread)

    def open(self, bus: object, cluster: object, reflection: object, recognise: Recognise | None = None) -> None:
        """The servicers have a method for each call of the service. `recognise`: from now on, where only a broker that
        serves can tell who its callers are."""
        self._recognise = recognise or self._recognise
        self._let(bus, cluster, reflection, self._around)

    def _let(self, bus: object, cluster: object, reflection: object, around: Around) -> None:
        """A handler is made when its first call comes: a broker that starts makes none that nobody needs."""
        servicers = {BUS.full_name: bus, CLUSTER.full_name: cluster, REFLECTION.full_name: reflection}
        self._handlers = {}
        self._find_handler = functools.partial(_find_handler, servicers, self._request_bytes_max, around)

    def _around(self, handle: Handler, method: MethodDescriptor) -> Handler:
        """A caller is authenticated before any of its request is read. The call counts as in flight once the request
        has been read."""
        stages = self._stages(method)
        if not method.client_streaming:
            seconds_max = LOGIN_SECONDS_MAX if method.name == WITHOUT_LOGIN else None
            stages[Stage.READ] = functools.partial(of_one_request, name=method.input_type.name, seconds_max=seconds_max)
        return assemble(stages, handle)

    def _around_unread(self, handle: Handler, method: MethodDescriptor) -> Handler:
        """Put the stages around a handler that has no use for a request."""
        return assemble(self._stages(method), handle)

    def _stages(self, method: MethodDescriptor) -> dict[Stage, Wrap]:
        stages: dict[Stage, Wrap] = {Stage.COUNT: self.calls.counted}
        recognise = self._recognise
        if recognise is not None:
            stages[Stage.IDENTIFY] = lambda handle: recognise(handle, method.name)
        return stages

    def find(self, path: str) -> grpc.RpcMethodHandler | None:
        handler = self._handlers.get(path)
        if handler is None:
            handler = self._find_handler(path)
            if handler is not None:
                self._handlers[path] = handler
        return handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self.find(handler_call_details.method)


class _StartingServicer:
    """Stands for all services; it reads no request. A method that is not here is a call that has to wait."""

    def __init__(self, identity: BrokerIdentity) -> None:
        self._identity = identity

    async def IdentifyBroker(
        self, request: pb.IdentifyBrokerRequest, context: grpc.aio.ServicerContext
    ) -> pb.IdentifyBrokerResponse:
        answer: pb.IdentifyBrokerResponse = IDENTITY.encode(self._identity)
        return answer

    async def refuse(self, request: object, context: grpc.aio.ServicerContext) -> NoReturn:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"broker {self._identity.broker_id} is starting; retry later")
        raise AssertionError("abort raises")

    async def refuse_answers(self, request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        await self.refuse(request, context)
        yield


_METHODS: Mapping[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for service in (BUS, CLUSTER, REFLECTION)
    for method in service.methods
}


def _find_handler(
    servicers: Mapping[str, object], request_bytes_max: int, around: Around, path: str
) -> grpc.RpcMethodHandler | None:
    """Requests are read here and not by the generated code, which has no limits, and whose errors gRPC answers with
    UNKNOWN."""
    method = _METHODS.get(path)
    if method is None:
        return None
    request_class, response_class = method.input_type._concrete_class, method.output_type._concrete_class
    is_produce = request_class is pb.ProduceRequest
    reader = produce_reader(request_bytes_max) if is_produce else control_reader(request_class)
    serialize = None if method.name in _SERIALIZED else response_class.SerializeToString
    handle = around(_find(servicers[method.containing_service.full_name], method), method)
    return _NEW_HANDLER[method.server_streaming](handle, reader, serialize)


def _find(servicer: object, method: Any) -> Callable[..., Any]:
    if not isinstance(servicer, _StartingServicer):
        return getattr(servicer, method.name)  # type: ignore[no-any-return]
    is_answers_only = method.server_streaming and not method.client_streaming
    return getattr(servicer, method.name, servicer.refuse_answers if is_answers_only else servicer.refuse)
