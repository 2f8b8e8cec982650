"""Who calls, as gRPC tells it."""

from __future__ import annotations

from urllib.parse import unquote

import grpc

from bus.broker_api.requests import Caller
from bus.runtime.logs import request_id


def caller_of(context: grpc.aio.ServicerContext) -> Caller:
    """For a handler, within its guard: the request keeps the id under which the guard logs it."""
    peer = context.peer()
    return Caller(peer, client_host(peer), request_id.get())


def client_host(peer: str) -> str:
    """As Kafka prints it, "/127.0.0.1", of what gRPC says: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000"."""
    family, _, address = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return f"/{address}"
    return "/" + address.rpartition(":")[0].strip("[]")
