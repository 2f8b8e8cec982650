"""A line of the log says that a change has no row of the audit."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from bus.broker_api.audit import ChangeAudit, Reporter
from bus.broker_api.calls import CALLS
from tests.support.api_bench import ALICE, KeptAudit


def test_a_change_without_a_row_is_a_line_of_the_module_and_not_of_the_authorizer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def report() -> None:
        audit: Any = KeptAudit()
        changes = ChangeAudit(audit, CALLS["DeleteTopics"].audited, Reporter(ALICE, "DeleteTopics"))
        changes.begin(lambda: ["a", "b"])
        changes.report_in_order([None])  # one outcome for two things
        await asyncio.sleep(0)

    asyncio.run(report())
    lines = [(one.name, one.levelno) for one in caplog.records]
    assert lines == [("bus.broker_api.audit", logging.ERROR)]
