"""How a broker keeps up with the keys of its identity provider: when it asks, and what stays while none answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bus.runtime.key_directory import UNKNOWN_KEY_PAUSE_S, KeyDirectory, RefreshTimes
from bus.runtime.tasks import TaskScope
from tests.support.identity_provider import jwk_of, key_set, new_private_key
from tests.support.virtual_time import run_virtually

KEY = new_private_key("ES256")
TIMES = RefreshTimes(refresh_ms=3_600_000, retry_backoff_ms=100, retry_backoff_max_ms=10_000)


class Provider:
    """A provider that replaces the threads and the server. Each answer takes `seconds`."""

    def __init__(self) -> None:
        self.document: bytes | None = key_set(jwk_of(KEY, "one"))
        self.seconds = 0.5
        self.asked_s: list[float] = []

    def read(self) -> bytes:
        if self.document is None:
            raise OSError("connection refused")
        return self.document

    def fetch(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._fetch(call))

    async def _fetch(self, call: Callable[[], Any]) -> Any:
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        return call()


def play(scenario: Callable[[Provider, KeyDirectory], Awaitable[None]]) -> None:
    async def run() -> None:
        provider, tasks = Provider(), TaskScope("test")
        directory = KeyDirectory(provider.read, "the provider", TIMES, calls=provider, tasks=tasks)
        await scenario(provider, directory)
        directory.close()
        await tasks.cancel()

    run_virtually(run())


def ids(directory: KeyDirectory) -> list[str]:
    return sorted(directory.keys.by_id)


def test_keys_are_read_at_the_start_and_once_an_interval() -> None:
    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        directory.start()
        await asyncio.sleep(1)
        assert ids(directory) == ["one"]
        provider.document = key_set(jwk_of(KEY, "two"))
        await asyncio.sleep(3_601)
        assert ids(directory) == ["two"]
        assert len(provider.asked_s) == 2

    play(scenario)


def test_a_provider_that_is_away_is_asked_with_growing_pauses_and_its_keys_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        directory.start()
        await asyncio.sleep(1)
        provider.document, provider.seconds = None, 0.0
        await asyncio.sleep(3_700)
        assert ids(directory) == ["one"]
        pauses_s = [after - before for before, after in zip(provider.asked_s[1:], provider.asked_s[2:], strict=False)]
        assert pauses_s[0] <= 0.1001
        assert all(pause_s <= 10.001 for pause_s in pauses_s)
        assert all(pause_s >= 7.999 for pause_s in pauses_s[8:])
        assert 10 <= len(pauses_s) <= 25
        provider.document = b"<html>a page of maintenance</html>"
        await asyncio.sleep(11)
        assert ids(directory) == ["one"]
        provider.document = key_set(jwk_of(KEY, "one"))
        count = len(provider.asked_s)
        await asyncio.sleep(11)
        assert len(provider.asked_s) == count + 1  # and then in an hour

    play(scenario)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning.rpartition(": ")[2] for warning in warnings] == [
        "connection refused",
        "expected a JSON Web Key Set, found no JSON",
    ]
    assert "the 1 read before stay" in warnings[0]
    assert [record.message for record in caplog.records if record.levelno == logging.INFO] == [
        "read 1 signing key at the provider",
        "read 1 signing key at the provider",
    ]


def test_a_token_by_a_new_key_has_the_set_read_at_once() -> None:
    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        directory.start()
        await asyncio.sleep(1)
        provider.document = key_set(jwk_of(KEY, "two"))
        await directory.look()
        assert ids(directory) == ["two"]

    play(scenario)


def test_a_flood_of_unknown_keys_asks_once_each_ten_seconds() -> None:
    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        directory.start()
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began_s + 60:
            await asyncio.gather(*(directory.look() for _ in range(50)))
            await asyncio.sleep(0.01)
        asked_s = provider.asked_s[1:]
        assert len(asked_s) == 6
        assert all(after - before >= UNKNOWN_KEY_PAUSE_S for before, after in itertools.pairwise(asked_s))

    play(scenario)


def test_a_login_at_the_start_waits_for_the_first_reading() -> None:
    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        directory.start()
        await asyncio.sleep(0)
        await directory.look()
        assert ids(directory) == ["one"]
        assert len(provider.asked_s) == 1

    play(scenario)


def test_a_login_does_not_wait_for_a_provider_that_hangs() -> None:
    async def scenario(provider: Provider, directory: KeyDirectory) -> None:
        provider.seconds = 1_000
        began_s = asyncio.get_running_loop().time()
        await directory.look()
        assert asyncio.get_running_loop().time() - began_s < 6
        assert ids(directory) == []

    play(scenario)
