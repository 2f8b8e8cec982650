"""Conversions of all handlers: the caller as gRPC names it, items of a message as values, refusals as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import grpc

from bus.addresses import bare_host
from bus.broker_api.requests import ANONYMOUS, Caller, CurrentLeader, InvalidArgument
from bus.client_texts import CLIENT_ID_BYTES_MAX, CLIENT_ID_HEADER, check_text
from bus.errors import Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import refused_with
from bus.model import BrokerEndpoint
from bus.runtime.logs import principal, request_id

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")
ResponseT = TypeVar("ResponseT", bound=Any)


@dataclass(frozen=True, slots=True)
class Converted(Generic[MessageT, ValueT]):
    """`convert` applied to each of `messages`; each iteration converts again."""

    messages: Sequence[MessageT]
    convert: Callable[[MessageT], ValueT]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[ValueT]:
        return map(self.convert, self.messages)


def caller_of(context: grpc.aio.ServicerContext, listener: str) -> Caller:
    """Return the caller of a handler, within its guard: the request keeps the id under which the guard logs it. Raises
    `InvalidArgument` for a client id that no client may have."""
    peer = context.peer()
    return Caller(
        peer, client_host(peer), request_id.get(), principal.get() or ANONYMOUS, _client_id(context), listener
    )


def _client_id(context: grpc.aio.ServicerContext) -> str:
    """The first one that the call says; empty if it says none."""
    for name, value in context.invocation_metadata() or ():
        if name == CLIENT_ID_HEADER:
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
            refused = check_text(f"a header {CLIENT_ID_HEADER}", text, CLIENT_ID_BYTES_MAX)
            if refused is not None:
                raise InvalidArgument(refused.message)
            return text
    return ""


def client_host(peer: str) -> str:
    """Return the host as Kafka prints it, "/127.0.0.1", for a peer as gRPC names it: "ipv4:127.0.0.1:5000",
    "ipv6:%5B::1%5D:5000"."""
    family, _, address = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return f"/{address}"
    return f"/{bare_host(address.rpartition(':')[0])}"


def with_error(response: ResponseT, refusal: Refused) -> ResponseT:
    """The response, or a part of one that may be refused alone, with its error code and message set."""
    response.error_code, response.error_message = int(refusal.code), refusal.message
    return response


def refusal_of(response: Any) -> Refused | None:
    """Return the refusal in another broker's response, or in a part of one; None if it has no error code."""
    return refused_with(response.error_code, response.error_message) if response.error_code else None


def encode_broker(broker: BrokerEndpoint, listener: str) -> pb.Broker | None:
    """Encode the broker with its address for clients of the listener; None if the broker has no such listener."""
    found = broker.at(listener)
    return None if found is None else pb.Broker(broker_id=found.broker_id, host=found.host, port=found.port)


def encode_leader(leader: CurrentLeader | None, listener: str) -> pb.CurrentLeader | None:
    broker = None if leader is None else encode_broker(leader.endpoint, listener)
    if leader is None or broker is None:
        return None
    return pb.CurrentLeader(broker=broker, leader_epoch=leader.leader_epoch)
