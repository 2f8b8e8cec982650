"""Last rows of the audit, when the broker that leads its partition takes none for the moment."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from bus.errors import ErrorCode, Refused
from bus.model import AUDIT_TOPIC, BrokerEndpoint
from bus.runtime import audit_log
from bus.runtime.audit_log import AuditLog
from bus.runtime.tasks import TaskScope
from bus.security.audit_trail import AuditEvent, AuditKind
from tests.support.fake_table import ManualClock
from tests.support.virtual_time import run_virtually

HERE, THERE = BrokerEndpoint(0, "here", 1), BrokerEndpoint(1, "there", 1)
MOVING = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is on its way")


class Leader:
    """The broker that leads the partition: it refuses the first `refusals` calls, and hangs in the next if `hangs`."""

    def __init__(self, refusals: int, *, hangs: bool = False) -> None:
        self.resources: list[str] = []
        self.asked_at_s: list[float] = []
        self._refusals = refusals
        self._hangs = hangs

    async def append_audit(self, leader: BrokerEndpoint, rows: bytes, *, timeout_s: float) -> Refused | None:
        self.asked_at_s.append(asyncio.get_running_loop().time())
        assert leader == THERE
        if len(self.asked_at_s) <= self._refusals:
            return MOVING
        if self._hangs:
            self._hangs = False
            await asyncio.Event().wait()
        self.resources += [row["resource"] for row in json.loads(rows)]
        return None


def audit_log_beside(leader: Leader) -> AuditLog:
    cluster: Any = SimpleNamespace(
        config=SimpleNamespace(audit_enable=True),
        endpoint=HERE,
        state=SimpleNamespace(
            topics={AUDIT_TOPIC: None},
            brokers={1: SimpleNamespace(endpoint=THERE)},
            leadership=lambda _: SimpleNamespace(leader_id=1),
        ),
    )
    peers: Any = leader
    return AuditLog(cluster, peers, clock=ManualClock(), tasks=TaskScope("audit"))


def change(resource: str) -> AuditEvent:
    return AuditEvent(1, AuditKind.CHANGE, "User:alice", operation="Delete", resource=resource)


def test_last_rows_are_offered_again_until_they_are_taken() -> None:
    leader = Leader(3)

    async def play() -> None:
        log = audit_log_beside(leader)
        log.start()
        log.add(change("orders"))
        log.add(change("pay"))
        await log.close()

    run_virtually(play())
    assert leader.resources == ["orders", "pay"]
    assert len(leader.asked_at_s) == 4


def test_more_rows_than_one_append_takes_are_all_written_at_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_ROWS_PER_APPEND", 2)
    leader = Leader(1)

    async def play() -> None:
        log = audit_log_beside(leader)
        log.start()
        for number in range(5):
            log.add(change(str(number)))
        await log.close()

    run_virtually(play())
    assert leader.resources == [str(number) for number in range(5)]


def test_broker_that_takes_no_last_rows_holds_up_a_stop_for_seconds_only() -> None:
    leader = Leader(10**9)
    took_s: list[float] = []

    async def play() -> None:
        log = audit_log_beside(leader)
        log.start()
        log.add(change("orders"))
        began_s = asyncio.get_running_loop().time()
        await log.close()
        took_s.append(asyncio.get_running_loop().time() - began_s)

    run_virtually(play())
    assert took_s[0] == pytest.approx(audit_log._LAST_FLUSH_S, abs=1e-3)
    assert len(leader.asked_at_s) > 10


def test_rows_whose_append_a_stop_interrupts_are_written_by_the_stop() -> None:
    leader = Leader(0, hangs=True)

    async def play() -> None:
        log = audit_log_beside(leader)
        log.start()
        log.add(change("orders"))
        await asyncio.sleep(1.5)
        assert leader.asked_at_s
        assert leader.resources == []
        await log.close()

    run_virtually(play())
    assert leader.resources == ["orders"]
