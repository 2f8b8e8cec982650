"""A broker that hangs: connections stay open, and no answer comes. Every time-out of the clients is far longer than a
test waits, so what passes was given up because of what another broker said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bus import Admin, Consumer, NewTopic, Producer
from tests.support.fake_broker import Cluster, FakeBroker
from tests.support.tcp_proxy import Link, TcpProxy

TIMES = {"request_timeout_ms": 300_000, "default_api_timeout_ms": 300_000}
PATIENCE_S = 60.0


class HangingCluster:
    """Broker 0 leads `t`, is the controller and coordinates all groups, until it hangs and broker 1 takes over."""

    def __init__(self, brokers: list[FakeBroker], link: Link) -> None:
        self.cluster = brokers[0].cluster
        self.brokers = brokers
        self.link = link
        self.addresses = [link.address, brokers[1].address]
        self.cluster.addresses[0] = link.address
        self.cluster.create("t")

    def fence(self) -> None:
        with self.cluster.changed:
            self.cluster.fenced = {0}
            self.cluster.controller_id = self.cluster.coordinator_id = 1
        self.cluster.move("t", 0, 1)

    def values(self) -> list[bytes | None]:
        return self.cluster.topics["t"].partitions[0].values()


@pytest.fixture
def hanging() -> Iterator[HangingCluster]:
    cluster = Cluster()
    with FakeBroker(cluster, 0) as first, FakeBroker(cluster, 1) as second, TcpProxy() as proxy:
        yield HangingCluster([first, second], proxy.link(first.address))


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_producer_sends_again_what_a_fenced_broker_has_not_answered(hanging: HangingCluster) -> None:
    with Producer(hanging.addresses, request_timeout_ms=300_000, delivery_timeout_ms=600_000) as producer:
        producer.send("t", b"0").result(PATIENCE_S)
        hanging.brokers[0].gate.clear()  # what comes is appended, but its answer is lost
        appended = producer.send("t", b"1")
        wait_until(lambda: hanging.values() == [b"0", b"1"])
        hanging.link.silence()
        lost = producer.send("t", b"2")
        hanging.fence()
        assert [appended.result(PATIENCE_S).offset, lost.result(PATIENCE_S).offset] == [1, 2]
        assert producer.send("t", b"3").result(PATIENCE_S).offset == 3
    assert hanging.values() == [b"0", b"1", b"2", b"3"]


def test_group_member_reads_and_commits_on_at_another_broker(hanging: HangingCluster) -> None:
    with (
        Producer([hanging.addresses[1]]) as producer,
        Consumer(
            hanging.addresses, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, **TIMES
        ) as consumer,
    ):
        consumer.subscribe(["t"])
        producer.send("t", b"0").result(PATIENCE_S)
        wait_until(lambda: consumer.poll(100))
        consumer.commit()
        hanging.link.silence()
        hanging.fence()
        producer.send("t", b"1").result(PATIENCE_S)
        read: list[bytes | None] = []
        wait_until(lambda: read.extend(record.value for record in consumer.poll(100)) or read)
        assert read == [b"1"]
        consumer.commit()
    assert [commit.partitions[0].offset for commit in hanging.cluster.coordinator.commits][-1] == 2


def test_question_that_any_broker_can_answer_is_put_to_the_next_one(hanging: HangingCluster) -> None:
    """Also while no broker is fenced."""
    hanging.link.silence()
    with Admin(hanging.addresses, **TIMES) as admin:
        assert admin.list_topics() == ["t"]


def test_change_is_never_sent_to_a_controller_that_hangs(hanging: HangingCluster) -> None:
    with Admin(hanging.addresses, **TIMES) as admin:
        admin.create_topics([NewTopic("before")])
        hanging.link.silence()
        # The first answer still has broker 0 for the controller.
        calls = hanging.brokers[1].calls
        hanging.brokers[1].on_metadata = lambda: hanging.fence() if calls.count("Metadata") > 1 else None
        admin.create_topics([NewTopic("after")])
    hanging.link.mend()
    assert [broker.calls.count("CreateTopics") for broker in hanging.brokers] == [1, 1]
