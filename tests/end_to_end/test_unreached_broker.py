"""A broker that nobody reaches, while its own heartbeats go out and are answered: others lead what it led."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bus import Admin, NewTopic, Producer
from bus.cli.main import cli
from tests.support.chaotic_cluster import BROKERS, ChaoticBroker, ChaoticCluster
from tests.support.member_processes import wait_until
from tests.support.tcp_proxy import Link

PARTITIONS = 6
FAULTS: tuple[Callable[[Link], None], ...] = (Link.silence, Link.cut)


@pytest.mark.timeout(300)
def test_partitions_of_a_broker_whose_address_nobody_reaches_are_led_by_others_until_it_is_reached(
    tmp_path: Path,
) -> None:
    with ChaoticCluster(tmp_path) as cluster:
        with Admin(cluster.addresses) as admin:
            admin.create_topics([NewTopic("t", PARTITIONS)])
        with Producer(cluster.addresses, request_timeout_ms=2_000, delivery_timeout_ms=100_000) as producer:
            send_to_all(producer)
            for fault in FAULTS:
                victim = find_victim(cluster)
                others = [broker.link.address for broker in cluster.brokers if broker is not victim]
                wait_until_leading(victim, others)
                fault(victim.link)
                send_to_all(producer)  # while its link stays as it is
                wait_until_without(victim, others)
                victim.link.mend()
                wait_until_leading(victim, others)
                send_to_all(producer)
        assert cluster.stop() == [0] * BROKERS
        verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(cluster.root)})
        assert verified.exit_code == 0, verified.output


def send_to_all(producer: Producer) -> None:
    for sent in [producer.send("t", value=b"v", partition=number) for number in range(PARTITIONS)]:
        sent.result(100)


def find_leaders(addresses: list[str]) -> set[int]:
    with Admin(addresses, request_timeout_ms=2_000) as admin:
        return {one.leader_id for one in admin.describe_topics(["t"])["t"].partitions}


def wait_until_leading(broker: ChaoticBroker, addresses: list[str]) -> None:
    what = f"broker {broker.broker_id} leads what it is the preferred leader of"
    wait_until(lambda: broker.broker_id in find_leaders(addresses), what, 100)


def wait_until_without(broker: ChaoticBroker, addresses: list[str]) -> None:
    """Each of the others follows the controller in its own time."""
    wait_until(lambda: broker.broker_id not in find_leaders(addresses), f"broker {broker.broker_id} leads nothing", 100)


def find_victim(cluster: ChaoticCluster) -> ChaoticBroker:
    """Choose one that is not the controller."""
    with Admin(cluster.addresses) as admin:
        return cluster.brokers[(admin.describe_cluster().controller_id + 1) % BROKERS]
