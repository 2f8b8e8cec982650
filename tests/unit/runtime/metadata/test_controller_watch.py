from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bus.model import BrokerEndpoint
from bus.runtime.metadata import controller
from bus.runtime.metadata.controller import ControllerWatch
from tests.support.fake_table import wait_until

FIRST, SECOND = BrokerEndpoint(0, "127.0.0.1", 9092), BrokerEndpoint(1, "127.0.0.1", 9093)


class Cluster:
    def __init__(self) -> None:
        self.controller: BrokerEndpoint | None = FIRST
        self.looks = 0
        self.watch = ControllerWatch(self.look)

    def look(self) -> BrokerEndpoint | None:
        self.looks += 1
        return self.controller


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_LOOK_S", 0.001)


def run(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(Cluster()), timeout=20)

    asyncio.run(main())


async def look_again(cluster: Cluster, times: int = 2) -> None:
    enough = cluster.looks + times
    await wait_until(lambda: cluster.looks >= enough)


def test_call_is_woken_by_another_controller_and_by_nothing_else() -> None:
    async def test(cluster: Cluster) -> None:
        wake = asyncio.Event()
        with cluster.watch.waking(wake, FIRST):
            await look_again(cluster)
            assert not wake.is_set()
            cluster.controller = SECOND
            await wake.wait()

    run(test)


@pytest.mark.parametrize(("known", "then"), [(None, FIRST), (FIRST, None)])
def test_no_controller_is_another_one(known: BrokerEndpoint | None, then: BrokerEndpoint | None) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.controller, wake = then, asyncio.Event()
        with cluster.watch.waking(wake, known):
            await wake.wait()

    run(test)


def test_each_call_waits_for_another_one_than_it_knows() -> None:
    async def test(cluster: Cluster) -> None:
        behind, ahead = asyncio.Event(), asyncio.Event()
        cluster.controller = SECOND
        with cluster.watch.waking(behind, FIRST), cluster.watch.waking(ahead, SECOND):
            await behind.wait()
            await look_again(cluster)
            assert not ahead.is_set()

    run(test)


def test_one_look_serves_all_and_none_is_made_when_no_call_waits() -> None:
    async def test(cluster: Cluster) -> None:
        wakes = [asyncio.Event() for _ in range(100)]
        with cluster.watch.waking(asyncio.Event(), FIRST):
            for wake in wakes:
                with cluster.watch.waking(wake, FIRST):
                    pass
            cluster.controller = SECOND
            await look_again(cluster)
        assert not any(wake.is_set() for wake in wakes), "they do not wait any more"
        await asyncio.sleep(0.02)
        looks = cluster.looks
        await asyncio.sleep(0.02)
        assert cluster.looks == looks

    run(test)
