"""Runs in transactions, one group: members are killed, paused and ended, the broker is killed; each record is counted
once, in the output or in the dead letters, and those of a key in their order."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import bus.sql
from bus import Admin, NewTopic, Producer
from tests.support.broker_process import BrokerProcess
from tests.support.member_processes import MemberProcesses, wait_until

RECORDS = 2_400
STEPS = 14
SETTINGS = (
    "group.min.session.timeout.ms=500",
    "group.initial.rebalance.delay.ms=100",
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
)


@pytest.mark.timeout(240)
def test_each_record_is_counted_once_whatever_becomes_of_members_and_broker(tmp_path: Path) -> None:
    chance = random.Random(5)
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with BrokerProcess(tmp_path / "root", *options) as broker:

        def program(name: str, journal: Path) -> Sequence[str]:
            return ["tests.support.transactional_member", broker.address, name, str(journal)]

        def committed() -> int:
            with Admin(broker.address) as admin:
                return sum(found.offset for found in admin.list_group_offsets("doubling").values())

        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic(name, partitions=4) for name in ("orders", "doubles", "orders.dlq")])
        with MemberProcesses(3, tmp_path / "members", program) as members, Producer(broker.address) as producer:
            for step in range(STEPS):
                first, end = RECORDS * step // STEPS, RECORDS * (step + 1) // STEPS
                for number in range(first, end):
                    producer.send("orders", b"%d" % number, key=b"%d" % (number % 30))
                threading.Event().wait(chance.uniform(0.2, 1.0))  # the moment is the input of this test
                members.disturb(chance)
                if step in (4, 9):
                    broker.kill()
                    broker.start()
            producer.flush()
            members.heal()
            wait_until(lambda: committed() == RECORDS, "all is committed", 90)
            members.end_in_order()
    check_counted(tmp_path / "root")


def check_counted(root: Path) -> None:
    with bus.sql.connect(str(root)) as connection:

        def numbers(sql: str) -> list[int]:
            return sorted(number for (number,) in connection.sql(sql).fetchall())

        assert numbers("SELECT value::INT // 2 FROM doubles") == [n for n in range(RECORDS) if n % 10 != 7]
        assert numbers('SELECT value::INT FROM "orders.dlq"') == list(range(7, RECORDS, 10))
        in_order = """
            SELECT bool_and(number > before) FROM (
                SELECT value::INT AS number, lag(value::INT) OVER (PARTITION BY key ORDER BY offset) AS before
                FROM doubles) WHERE before IS NOT NULL"""
        assert connection.sql(in_order).fetchall() == [(True,)]
