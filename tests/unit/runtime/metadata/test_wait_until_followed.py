"""Waits of the controller until every broker knows its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.broker_liveness import WriteSession
from bus.cluster_metadata.cluster_records import BrokerStarted, BrokerUnfenced, FeatureLevel, apply_all
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, LEVEL_OF_CLUSTERS
from bus.errors import NotController
from bus.runtime.metadata.broker_heartbeats import BrokerHeartbeats
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Peers
from bus.runtime.metadata.producers import ProducerUses
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from tests.support.fake_table import ManualClock


def started(broker_id: int, epoch: int) -> BrokerStarted:
    return BrokerStarted(broker_id, "h", 1 + broker_id, None, f"life of {broker_id}", epoch, 0, LEVEL_OF_CLUSTERS)


TWO = apply_all(
    EMPTY_CLUSTER,
    [
        FeatureLevel(BUS_VERSION, LEVEL_OF_CLUSTERS),
        *(started(0, 1), BrokerUnfenced(0, 1)),
        *(started(1, 2), BrokerUnfenced(1, 2)),
    ],
)
END = 40


class Metadata:
    """Led by broker 0, and its records are there up to `END`."""

    def __init__(self) -> None:
        self.cluster = TWO
        self.is_leading = True
        self.applied_offset = END

    async def wait_until_applied(self, offset: int) -> None:
        await asyncio.Event().wait()


class Bench:
    def __init__(self) -> None:
        self.metadata = Metadata()
        self.heartbeats = BrokerHeartbeats(
            cast(MetadataLog, self.metadata),
            cast(Peers, None),
            ProducerUses(1),
            cast(Any, SimpleNamespace(begin=lambda: None, take=lambda *_: None, merge=lambda _: {})),
            BrokerConfig(),
            writes=WriteSession(2_000, tick_ms=200, now_ms=0),
            broker_id=0,
            cluster_id="c",
            clock=ManualClock(),
            tasks=TaskScope("test"),
        )

    def wait(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.heartbeats.wait_until_followed(END))

    async def beat(self, offset: int) -> Any:
        beat = BrokerHeartbeat(1, 2, "life of 1", offset, wants_shut_down=False, max_wait_ms=0)
        return await self.heartbeats.take(beat)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(Bench()), 10)

    asyncio.run(main())


def test_broker_that_was_elected_a_moment_ago_waits_for_the_others_too() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = bench.wait()
        await settle()
        bench.heartbeats.begin(())
        await settle()
        assert not waiting.done()
        assert await bench.beat(END - 1) == HeartbeatAnswer(END, False)
        assert not waiting.done()
        await bench.beat(END)
        await waiting

    run(scenario)


@pytest.mark.parametrize("end", ["deposed", "stopped"])
def test_what_cannot_be_told_any_more_is_not_waited_for_and_not_taken_for_true(end: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.heartbeats.begin(())
        waiting = bench.wait()
        await settle()
        if end == "stopped":
            bench.heartbeats.stop()
        else:
            bench.metadata.is_leading = False
            bench.heartbeats.follow(TWO)
        with pytest.raises(NotController):
            await waiting
        with pytest.raises(NotController):
            await bench.wait()

    run(scenario)
