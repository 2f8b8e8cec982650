"""Turns are called in order, and those that go away leave nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref

from bus.runtime.blocking import FairTurns


class Client:
    pass


async def take(turns: FairTurns, client: object, taken: list[object]) -> None:
    async with turns.turn(client):
        taken.append(client)
        await asyncio.sleep(0)


def test_clients_that_wait_have_turns_one_after_another() -> None:
    async def play() -> None:
        turns, taken = FairTurns(1), list[object]()
        async with turns.turn("first"):
            waiting = [asyncio.ensure_future(take(turns, client, taken)) for client in "aaab"]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert taken == ["a", "b", "a", "a"]

    asyncio.run(play())


def test_who_goes_away_while_it_waits_is_forgotten_at_once() -> None:
    """A client that asks and goes away again and again would fill memory for as long as another one has the turn."""

    async def play() -> None:
        turns, taken = FairTurns(1), list[object]()
        async with turns.turn("first"):
            client = Client()
            gone = weakref.ref(client)
            waiting = [asyncio.ensure_future(take(turns, client, taken)) for _ in range(3)]
            del client
            await asyncio.sleep(0)
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            waiting.clear()
            del one
            gc.collect()
            assert gone() is None
        async with turns.turn("next"):
            pass
        assert taken == []

    asyncio.run(play())


def test_a_turn_that_comes_to_one_that_is_going_away_is_passed_on() -> None:
    async def play() -> None:
        turns, taken = FairTurns(1), list[object]()
        async with turns.turn("first"):
            leaving, staying = (asyncio.ensure_future(take(turns, client, taken)) for client in "ab")
            await asyncio.sleep(0)
            leaving.cancel()  # it has not noticed when the turn ends
        await asyncio.wait([leaving, staying])
        assert leaving.cancelled()
        async with turns.turn("next"):
            assert taken == ["b"]

    asyncio.run(play())
