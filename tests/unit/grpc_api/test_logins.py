from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from bus.broker_api.logins import LOGIN_SECONDS_MAX
from bus.broker_api.pipeline import within
from bus.grpc_api.server.connections.logins import LoginHandler
from bus.grpc_api.server.guards import StreamRegistry
from bus.grpc_api.server.request_limits import UnreadableRequest
from bus.runtime.partitions.fetches import Stopping
from tests.support.cancelled_calls import QuietContext
from tests.support.virtual_time import run_virtually


class CountedLogins:
    def __init__(self) -> None:
        self.under_way = 0

    @contextlib.contextmanager
    def one_of(self, host: str) -> Iterator[None]:
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1


class HeldUpContext(QuietContext):
    """A call whose client takes nothing."""

    async def send_initial_metadata(self, metadata: Any) -> None:
        await asyncio.Event().wait()


async def no_requests() -> AsyncIterator[Any]:
    for request in ():
        yield request


def test_login_whose_client_takes_no_metadata_ends_in_time() -> None:
    logins = CountedLogins()

    async def log_in() -> None:
        handler = LoginHandler(logins, StreamRegistry(Stopping()), "STAFF", has_logins=True)  # type: ignore[arg-type]
        log_in = within(handler.opened)(handler.authenticate)
        login = asyncio.create_task(log_in(no_requests(), HeldUpContext()))
        done, _ = await asyncio.wait([login], timeout=LOGIN_SECONDS_MAX - 1)
        assert not done
        assert logins.under_way == 1
        await asyncio.wait([login], timeout=2)
        assert login.done()
        with pytest.raises(UnreadableRequest) as caught:
            login.result()
        assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
        assert not logins.under_way

    run_virtually(log_in())
