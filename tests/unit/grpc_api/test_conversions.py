from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

from bus.broker_api.requests import Caller
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.guards import guard
from bus.runtime.logs import request_id

CONTEXT: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:5000")


def test_caller_has_the_request_id_under_which_its_guard_logs() -> None:
    async def handle(_: object) -> tuple[Caller, str]:
        return caller_of(CONTEXT), request_id.get()

    def run() -> tuple[Caller, str]:
        return asyncio.run(guard(handle, object(), CONTEXT))

    caller, logged = contextvars.copy_context().run(run)
    assert logged
    assert caller == Caller("ipv4:127.0.0.1:5000", "/127.0.0.1", logged)
