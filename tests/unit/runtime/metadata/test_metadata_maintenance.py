"""The switch of the metadata log's protocol, and the end of what maintains the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, LEVEL_OF_MANAGED_TABLES
from bus.errors import ErrorCode, Refused
from bus.runtime.metadata import metadata_maintenance
from bus.runtime.metadata.metadata_maintenance import MetadataMaintenance
from bus.runtime.partitions.maintenance import MaintenanceAction
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

        table = SimpleNamespace(state=SimpleNamespace(high_watermark=9, log_start=0), is_managed=True)
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


def test_the_log_keeps_other_engines_from_writing_once_every_broker_can_open_such_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[MaintenanceAction] = []
    fake = SimpleNamespace(look=lambda: None, look_after_commit=lambda: None, stop=lambda _: None)
    monkeypatch.setattr(metadata_maintenance, "PartitionMaintenance", lambda *_, **__: fake)
    monkeypatch.setattr(metadata_maintenance, "is_snapshot_due", lambda *_: False)

    async def run() -> None:
        answers: list[asyncio.Future[object]] = []

        def maintain(action: MaintenanceAction) -> asyncio.Future[object]:
            asked.append(action)
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        fake.maintain = maintain
        state = SimpleNamespace(high_watermark=9, log_start=0)
        table = SimpleNamespace(state=state, is_managed=False, rewrites=SimpleNamespace(files=[]))
        changes = SimpleNamespace(cluster=replace(EMPTY_CLUSTER, level=LEVEL_OF_MANAGED_TABLES - 1))
        maintenance = MetadataMaintenance(
            cast(Any, SimpleNamespace(table=table)),
            cast(Any, changes),
            rules=cast(Any, None),
            calls=cast(Any, None),
            tasks=cast(Any, None),
            maintenance=cast(Any, None),
        )
        maintenance.look_after()
        assert asked == []
        changes.cluster = replace(EMPTY_CLUSTER, level=LEVEL_OF_MANAGED_TABLES)
        maintenance.look_after_commit()
        maintenance.look_after()
        assert asked == [MaintenanceAction.UPGRADE]
        answers[0].set_result(None)  # it could not be committed
        maintenance.look_after()
        assert asked == [MaintenanceAction.UPGRADE] * 2
        table.is_managed = True
        answers[1].set_result(None)
        maintenance.look_after()
        assert len(asked) == 2
        table.is_managed = False
        maintenance.stop(Refused(ErrorCode.NOT_CONTROLLER, "another one is"))
        maintenance.look_after()
        assert len(asked) == 2

    run_virtually(run())
