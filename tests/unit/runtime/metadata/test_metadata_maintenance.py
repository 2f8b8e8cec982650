"""The end of what maintains the metadata log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.runtime.metadata import metadata_maintenance
from bus.runtime.metadata.metadata_maintenance import MetadataMaintenance
from tests.support.virtual_time import run_virtually


async def nothing(*_: object, **__: object) -> None:
    return None


def test_a_snapshot_that_was_cancelled_before_it_began_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never runs, so it cannot say that it is over; a wait for it returns at once, again and again."""
    ended = SimpleNamespace(under_way=[], stop=lambda _: None, join=nothing, look=lambda: None)
    monkeypatch.setattr(metadata_maintenance, "PartitionMaintenance", lambda *_, **__: ended)
    monkeypatch.setattr(metadata_maintenance, "is_snapshot_due", lambda *_: True)

    async def run() -> None:
        def start(coroutine: Any, _: str) -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(coroutine)
            task.cancel()
            return task

        table = SimpleNamespace(state=SimpleNamespace(high_watermark=9, log_start=0))
        maintenance = MetadataMaintenance(
            cast(Any, SimpleNamespace(table=table)),
            cast(Any, SimpleNamespace(cluster=None)),
            rules=cast(Any, None),
            calls=cast(Any, None),
            tasks=cast(Any, SimpleNamespace(start=start)),
            maintenance=cast(Any, None),
        )
        maintenance.look_after()
        await asyncio.sleep(0)
        await maintenance.end()

    run_virtually(run())
