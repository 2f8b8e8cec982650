from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bus.runtime import tasks
from bus.runtime.tasks import LoopShares


def test_items_are_appended_in_order_and_others_have_the_loop_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0.0)
    seen: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            seen.append(item)
            yield item

    async def test() -> None:
        found = [-1]
        others: list[int] = []
        asyncio.get_running_loop().call_soon(lambda: others.append(len(seen)))
        assert await LoopShares().begin().extend(found, items()) is found
        assert found == [-1, 0, 1, 2, 3, 4]
        assert others
        assert others[0] < 5, "others had to wait for all items"

    asyncio.run(test())
