from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.requests import ANONYMOUS, Caller, InvalidArgument
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.guards import guarded
from bus.runtime.logs import request_id

CONTEXT: Any = SimpleNamespace(
    peer=lambda: "ipv4:127.0.0.1:5000", invocation_metadata=lambda: (("client-id", "loader"),)
)


def test_caller_has_the_request_id_under_which_its_guard_logs() -> None:
    async def handle(_: object, __: object) -> tuple[Caller, str]:
        return caller_of(CONTEXT, "CLIENTS"), request_id.get()

    def run() -> tuple[Caller, str]:
        return asyncio.run(guarded(handle)(object(), CONTEXT))

    caller, logged = contextvars.copy_context().run(run)
    assert logged
    assert caller == Caller("ipv4:127.0.0.1:5000", "/127.0.0.1", logged, ANONYMOUS, "loader", "CLIENTS")


@pytest.mark.parametrize(
    ("client_id", "found"),
    [("x" * 256, "at most 255 bytes, found 256"), ("a\nb", "without control characters"), (b"\x80" * 90, "found 270")],
)
def test_client_id_that_no_client_may_have_is_refused(client_id: str | bytes, found: str) -> None:
    context: Any = SimpleNamespace(peer=CONTEXT.peer, invocation_metadata=lambda: (("client-id", client_id),))
    with pytest.raises(InvalidArgument, match=found):
        caller_of(context, "CLIENTS")


def test_call_that_says_no_client_id_has_an_empty_one() -> None:
    context: Any = SimpleNamespace(peer=CONTEXT.peer, invocation_metadata=lambda: None)
    assert caller_of(context, "CLIENTS").client_id == ""
