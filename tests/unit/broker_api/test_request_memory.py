"""Shares of the memory for requests, and the order in which waiting requests continue."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest

from bus.broker_api.requests import Held, RequestMemory


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_each_client_may_have_as_much_as_is_still_free() -> None:
    memory = RequestMemory(1000)
    greedy = memory.hold("greedy", 499)
    assert memory.has_room("greedy")
    greedy.grow_to(500)
    assert not memory.has_room("greedy")
    assert memory.bytes_left("other") == 500


def test_clients_that_are_held_back_leave_room_for_the_next_one() -> None:
    memory = RequestMemory(1 << 28)
    held: dict[int, list[Held]] = {client: [] for client in range(12)}
    for _ in range(10_000):
        for client, requests in held.items():
            if memory.has_room(client):
                requests.append(memory.hold(client, 1 << 16))
        if not any(memory.has_room(client) for client in held):
            break
    assert memory.bytes_left("thirteenth") > (1 << 28) // 14
    small = RequestMemory(1000)
    small.hold("one", 5000)
    assert small.has_room("newcomer"), "a small share is everybody's, also when all is taken"
    small.hold("newcomer", 2)
    assert not small.has_room("newcomer")


def test_request_counts_until_each_of_its_users_has_dropped_it() -> None:
    memory = RequestMemory(1000)
    held = memory.hold("client", 600)
    held.use()  # a batch in a queue
    held.use()  # another one
    held.drop()
    held.drop()
    assert not memory.has_room("client"), "its client is gone, and a batch still waits for its commit"
    held.drop()
    assert memory.bytes_left("client") == 1000


def test_those_who_wait_go_on_in_the_order_they_came_as_far_as_they_may() -> None:
    async def scenario() -> None:
        memory = RequestMemory(1000)
        greedy = [memory.hold("greedy", 400), memory.hold("greedy", 100)]
        other = memory.hold("other", 350)
        went: list[str] = []

        async def wait(client: str) -> None:
            await memory.wait_for_room(client)
            went.append(client)

        waiting = [asyncio.ensure_future(wait(client)) for client in ("greedy", "other", "other", "newcomer")]
        await settle()
        assert went == ["newcomer"]
        waiting[1].cancel()
        greedy.pop().drop()
        await settle()
        assert went == ["newcomer"], "250 bytes are free, and each of the two has more"
        other.drop()
        await settle()
        assert went == ["newcomer", "greedy", "other"]
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(scenario())


def test_streams_of_one_client_that_wait_cost_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        memory, looks = RequestMemory(1000), []
        greedy = memory.hold("greedy", 500)
        waiting = [asyncio.ensure_future(memory.wait_for_room("greedy")) for _ in range(100)]
        await settle()
        has_room = memory.has_room

        def counted(client: Hashable) -> bool:
            looks.append(client)
            return has_room(client)

        monkeypatch.setattr(memory, "has_room", counted)
        memory.hold("other", 100).drop()
        assert looks == ["greedy"]
        greedy.drop()
        await asyncio.gather(*waiting)
        assert not memory._waiting

    asyncio.run(scenario())


def test_streams_that_end_while_they_wait_are_forgotten() -> None:
    async def scenario() -> None:
        memory = RequestMemory(1000)
        memory.hold("greedy", 500)
        waiting = [asyncio.ensure_future(memory.wait_for_room("greedy")) for _ in range(3)]
        await settle()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not memory._waiting

    asyncio.run(scenario())
