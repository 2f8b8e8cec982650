"""Three brokers behind links that forget all connections at once, as a firewall does that fails over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bus import Admin, NewTopic
from bus.broker import Broker
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import BrokerFenced, ControllerElected, decode_record
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_process import free_port
from tests.support.broker_thread import run_on, running_broker
from tests.support.tcp_proxy import Link, TcpProxy

# A session that no halt of a busy machine is as long as. What is shown here takes a part of it that is noted below.
SESSION_MS = 60_000


@dataclass(frozen=True, slots=True)
class LinkedBrokers:
    root: Path
    brokers: list[Broker]
    links: list[Link]

    @property
    def controller(self) -> Broker:
        (found,) = (broker for broker in self.brokers if broker.cluster.metadata.is_leading)
        return found

    def follow(self) -> None:
        """Wait until the controller has heard from every broker that it has followed what the controller knows now."""
        controller = self.controller
        offset = controller.cluster.metadata.applied_offset
        run_on(controller, controller.cluster.heartbeats.wait_until_followed(offset))

    def records(self) -> list[ClusterRecord]:
        storage = open_storage(str(self.root), exclusive=False)
        return [decode_record(row) for row in storage.open_metadata().replay()]


@contextmanager
def linked_brokers(root: Path) -> Iterator[LinkedBrokers]:
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy())
        brokers, links = [], []
        for broker_id in range(3):
            address = f"127.0.0.1:{free_port()}"
            links.append(proxy.link(address))
            config = BrokerConfig(
                broker_id=broker_id,
                listen=address,
                advertise=links[-1].address,
                broker_session_timeout_ms=SESSION_MS,
                offsets_topic_num_partitions=1,
            )
            brokers.append(stack.enter_context(running_broker(root, config=config)))
        yield LinkedBrokers(root, brokers, links)


def test_connections_that_are_all_forgotten_at_once_have_no_broker_fenced_and_none_elected(tmp_path: Path) -> None:
    with linked_brokers(tmp_path / "root") as linked:
        addresses = [link.address for link in linked.links]
        with Admin(addresses) as admin:
            admin.create_topics([NewTopic("before", partitions=3)])
            linked.follow()
            before = linked.records()
            for link in linked.links:
                link.swallow()
            controller = linked.controller
        with Admin([f"127.0.0.1:{broker.port}" for broker in linked.brokers if broker is not controller]) as admin:
            admin.create_topics([NewTopic("behind", partitions=3)])
        linked.follow()
        assert linked.controller is controller
        since = linked.records()[len(before) :]
    assert not [record for record in since if isinstance(record, (ControllerElected, BrokerFenced))]
