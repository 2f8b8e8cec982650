"""Producers whose brokers die in the middle of a transaction, where it matters most."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from bus.runtime.partitions.open_transactions import OpenTransactions
from tests.simulation.broker_programs import leader_of
from tests.simulation.broker_world import BrokerWorld, SimulatedBroker
from tests.simulation.transaction_programs import Attempt, Transactor


class Interrupted(Transactor):
    """A broker that has to do with it dies behind the first batch of a transaction, before the second partition takes
    part, and its commits seldom name their ends. `alone_min` to `alone_max` transactions of the first partition alone
    are committed before; all but the first of them are decided by their versions."""

    alone_min = alone_max = 0

    async def do_something(self) -> None:
        attempt = await self._begin_behind_others()
        if attempt is None:
            return
        life = self._broker_that_dies().life
        if life is not None:
            life.crash(0.1)
        if attempt.acknowledged:
            await asyncio.sleep(0.5)
            await self._send(attempt, self._topics[0], 1, self._new_values())
        await self._end(attempt, is_commit=True)

    async def _begin_behind_others(self) -> Attempt | None:
        await asyncio.sleep(0.5)
        for _ in range(self.world.random.randrange(self.alone_min, self.alone_max + 1)):
            attempt = await self._begin()
            if attempt is not None:
                await self._end(attempt, is_commit=True)
        return await self._begin()

    async def _begin(self) -> Attempt | None:
        if self._identity is None:
            await self._init()
        if self._identity is None:
            return None
        attempt = Attempt(self.transactional_id, *self._identity)
        self.attempts.append(attempt)
        await self._send(attempt, self._topics[0], 0, self._new_values())
        return attempt

    def _broker_that_dies(self) -> SimulatedBroker:
        leaders = [leader_of(self.world, self._topics[0], number) for number in (0, 1)]
        return self.world.random.choice([each for each in (self._coordinator, *leaders) if each is not None])

    def _names_ends(self) -> bool:
        return self.world.random.randrange(4) == 0


class InterruptedAlone(Interrupted):
    alone_max = 3


class InterruptedSave(InterruptedAlone):
    """The leader of the first partition dies while the transaction is ended: what it had in memory alone, it was just
    making durable, or had not begun to."""

    alone_min = 1

    async def do_something(self) -> None:
        random = self.world.random
        attempt = await self._begin_behind_others()
        if attempt is None:
            return
        if random.randrange(2):
            await asyncio.sleep(random.uniform(1.9, 2.5))  # it is no longer young
        await self._send(attempt, self._topics[0], 1, self._new_values())
        self.world.at(random.uniform(0.0, 0.1), self._crash_leader)
        await self._end(attempt, is_commit=True)

    def _crash_leader(self) -> None:
        leader = leader_of(self.world, self._topics[0], 0)
        if leader is not None and not self.world.is_healed:
            leader.crash()

    def _names_ends(self) -> bool:
        return True


@contextlib.contextmanager
def slow_saves(world: BrokerWorld) -> Iterator[None]:
    """Up to a second passes before a batch that is in memory alone is on its way to the disk."""
    save = OpenTransactions._save_once

    async def save_late(self: OpenTransactions, *about: Any) -> Any:
        await asyncio.sleep(world.random.choice((0.0, world.random.uniform(0.0, 1.0))))
        return await save(self, *about)

    with mock.patch.object(OpenTransactions, "_save_once", save_late):
        yield
