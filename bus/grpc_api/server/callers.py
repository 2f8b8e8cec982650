"""Who calls, as gRPC tells it."""

from __future__ import annotations

from urllib.parse import unquote

import grpc

from bus.broker_api.requests import Caller, new_request_id


def caller_of(context: grpc.aio.ServicerContext) -> Caller:
    """A request that gets an id of its own."""
    peer = context.peer()
    return Caller(peer, client_host(peer), new_request_id())


def client_host(peer: str) -> str:
    """As Kafka prints it, "/127.0.0.1", of what gRPC says: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000"."""
    family, _, address = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return f"/{address}"
    return "/" + address.rpartition(":")[0].strip("[]")
