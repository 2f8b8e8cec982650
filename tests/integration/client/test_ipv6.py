"""Two brokers that listen at `[::1]` alone: clients, groups, transactions, administrators, commands, and the brokers
among themselves."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import bus.aio
from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from bus.cli.main import cli
from bus.cluster_metadata.broker_records import encode_listeners, parse_listeners
from bus.model import ListenerAddress
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

WAIT_S = 30.0


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as found:
            found.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        started = []
        for broker_id in (0, 1):
            config = BrokerConfig(
                broker_id=broker_id,
                listeners=("PLAINTEXT://[::1]:0",),
                offsets_topic_num_partitions=2,
                transaction_state_log_num_partitions=2,
                group_initial_rebalance_delay_ms=0,
            )
            started.append(stack.enter_context(running_broker(tmp_path / "root", config=config)))
        yield started


def create_on_both(address: str) -> None:
    """A topic with a partition on each broker, once both may lead."""
    with Admin(address) as admin:
        deadline_s = time.monotonic() + WAIT_S
        while len(admin.describe_cluster().brokers) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        admin.create_topics([NewTopic("t", partitions=2)])
        topic = admin.describe_topics(["t"])["t"]
        assert {one.leader_id for one in topic.partitions} == {0, 1}


def test_everything_works_at_ipv6_addresses(brokers: list[Broker]) -> None:
    addresses = [f"[::1]:{broker.port}" for broker in brokers]
    create_on_both(addresses[1])  # which sends the change on to the controller
    with Producer(addresses[1], transactional_id="pays") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.send("t", b"%d" % number, partition=number)
        producer.commit_transaction()  # by both leaders
    with Consumer(addresses[0], group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        read: list[bytes | None] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(read) < 2:
            assert time.monotonic() < deadline_s
            read += [record.value for record in consumer.poll(100)]
        consumer.commit()
    assert sorted(map(bytes, filter(None, read))) == [b"0", b"1"]
    with Admin(addresses[0]) as admin:
        assert admin.list_group_offsets("g")[TopicPartition("t", 0)].offset == 1
        assert [one.transactional_id for one in admin.list_transactions()] == ["pays"]
        admin.describe_transactions(["pays"])
        admin.describe_quota_usage()
    described = CliRunner().invoke(cli, ["groups", "describe", "g", "--state", "--address", addresses[1]])
    assert described.exit_code == 0, described.output
    assert "[::1]:" in described.output

    async def send() -> int:
        async with bus.aio.Producer(addresses[0]) as producer:
            return (await producer.send("t", b"2", partition=0)).offset

    assert asyncio.run(asyncio.wait_for(send(), WAIT_S)) == 1


def test_listeners_in_the_metadata_have_brackets_and_those_of_an_earlier_broker_are_read() -> None:
    listeners = (ListenerAddress("A", "PLAINTEXT", "::1", 1), ListenerAddress("B", "SSL", "b", 2))
    assert encode_listeners(listeners) == "A:PLAINTEXT://[::1]:1,B:SSL://b:2"
    assert parse_listeners(encode_listeners(listeners)) == listeners
    assert parse_listeners("A:PLAINTEXT://::1:1,B:SSL://b:2") == listeners
