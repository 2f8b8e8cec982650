"""Ids out of blocks: each once, the next block in time, and a refusal that does not stick."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bus.errors import ErrorCode, Refused
from bus.runtime.metadata.producers import ProducerIdPool
from bus.runtime.tasks import TaskScope

REFUSED = Refused(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")


class Blocks:
    """Gives blocks of ten, when the gate is open."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_refusing = False
        self.epoch = 1  # of the controller
        self.gate = asyncio.Event()
        self.gate.set()

    async def allocate(self) -> range | Refused:
        self.asked += 1
        first = 10 * self.asked
        await self.gate.wait()
        return REFUSED if self.is_refusing else range(first, first + 10)


def run(scenario: Callable[[ProducerIdPool, Blocks], Awaitable[None]]) -> None:
    async def main() -> None:
        blocks, tasks = Blocks(), TaskScope("test")
        await scenario(ProducerIdPool(blocks.allocate, tasks, epoch=lambda: blocks.epoch), blocks)
        blocks.gate.set()
        await tasks.join()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_block_is_asked_for_before_an_id_is_wanted_and_ids_come_in_order() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        await settle()
        assert blocks.asked == 0
        assert [await pool.take() for _ in range(25)] == list(range(10, 35))

    run(scenario)


def test_next_block_is_there_before_this_one_is_used_up() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        for _ in range(8):
            await pool.take()
        await settle()
        assert blocks.asked == 1
        await pool.take()
        await settle()
        assert blocks.asked == 2, "one of ten is left"
        blocks.gate.clear()  # what is asked for from now on has to wait, and nobody notices
        assert [await asyncio.wait_for(pool.take(), 1) for _ in range(11)] == list(range(19, 30))

    run(scenario)


def test_many_at_once_share_the_blocks_and_get_different_ids() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        blocks.gate.clear()
        takers = [asyncio.ensure_future(pool.take()) for _ in range(35)]
        await settle()
        assert blocks.asked == 1
        blocks.gate.set()
        assert sorted(await asyncio.gather(*takers)) == list(range(10, 45))  # type: ignore[type-var]

    run(scenario)


def test_refusal_is_the_answer_of_those_who_waited_and_the_next_try_may_succeed() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        blocks.is_refusing = True
        takers = [asyncio.ensure_future(pool.take()) for _ in range(3)]
        assert await asyncio.gather(*takers) == [REFUSED] * 3
        assert blocks.asked == 1
        blocks.is_refusing = False
        assert await pool.take() == 20

    run(scenario)


def test_prefetch_that_is_refused_harms_nobody() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        for _ in range(8):
            await pool.take()
        blocks.is_refusing = True
        assert await pool.take() == 18
        await settle()
        assert await pool.take() == 19
        blocks.is_refusing = False
        await settle()
        assert isinstance(await pool.take(), int)

    run(scenario)


def test_waiter_that_goes_away_takes_no_id_and_no_block_with_it() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        blocks.gate.clear()
        gone, stays = (asyncio.ensure_future(pool.take()) for _ in range(2))
        await settle()
        gone.cancel()
        blocks.gate.set()
        assert await stays == 10
        assert await pool.take() == 11

    run(scenario)


def test_ids_rise_also_when_this_broker_is_the_controller_again() -> None:
    """The one in between may have given ids of a later block."""

    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        assert [await pool.take() for _ in range(9)] == list(range(10, 19))
        await settle()
        blocks.epoch, blocks.asked = 3, 5
        assert await pool.take() == 60

    run(scenario)


def test_block_that_was_asked_for_under_an_earlier_epoch_is_not_given() -> None:
    async def scenario(pool: ProducerIdPool, blocks: Blocks) -> None:
        blocks.gate.clear()
        taker = asyncio.ensure_future(pool.take())
        await settle()
        blocks.epoch = 2
        blocks.gate.set()
        assert await taker == 20

    run(scenario)
