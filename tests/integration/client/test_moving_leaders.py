"""Two brokers of one cluster whose leaderships move: clients go on without a duplicate or a loss.

Broker 0 is the controller. The test decides who leads what.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from bus.aio import Consumer as AsyncConsumer
from bus.broker import Broker
from bus.cli.main import cli
from bus.client.connection.cluster import Cluster
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import LeaderChanged
from bus.cluster_metadata.cluster_state import Leadership
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.model import CONSUMER_OFFSETS_TOPIC, Step
from bus.ports import Committed
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_thread import run_on, running_broker
from tests.support.stores import NOW_MS

NOWHERE = "127.0.0.1:1"
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))


class MovingCluster:
    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers
        self.controller = brokers[0].cluster.metadata
        self.addresses = [f"127.0.0.1:{broker.port}" for broker in brokers]
        self.bootstrap = [NOWHERE, self.addresses[1], self.addresses[0]]

    def commit(self, *records: ClusterRecord) -> None:
        """Commit the records, and wait until both brokers know."""

        async def change() -> int:
            await self.controller.change([lambda _: Step(None, records)])
            return self.controller.applied_offset

        offset = run_on(self.brokers[0], change())
        run_on(self.brokers[1], self.brokers[1].cluster.metadata.wait_until_applied(offset))

    async def wait_until_both_may_lead(self) -> None:
        while self.controller.cluster.unfenced_brokers != [0, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def settle(self) -> None:
        for broker in self.brokers:
            run_on(broker, broker.cluster.host.wait_until_settled())

    def move(self, topic: str, leader_id: int, *partitions: int) -> None:
        found = self.controller.cluster.topics[topic]
        self.commit(
            *(
                LeaderChanged(topic, found.topic_id, number, leader_id, found.partitions[number].leader_epoch + 1)
                for number in partitions
            )
        )


@contextmanager
def moving_cluster(root: Path) -> Iterator[MovingCluster]:
    with ExitStack() as stack:
        brokers = []
        for broker_id in (0, 1):
            config = BrokerConfig(
                broker_id=broker_id, offsets_topic_num_partitions=2, group_initial_rebalance_delay_ms=0
            )
            brokers.append(stack.enter_context(running_broker(root, config=config)))
        cluster = MovingCluster(brokers)
        run_on(brokers[0], cluster.wait_until_both_may_lead())
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("t", partitions=2, configs={"commit.interval.ms": 0})])
        run_on(brokers[0], brokers[0]._core.coordinator.prepare())
        cluster.move("t", 1, 0, 1)
        cluster.move(CONSUMER_OFFSETS_TOPIC, 1, 0, 1)
        cluster.settle()
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MovingCluster]:
    with moving_cluster(tmp_path / "root") as found:
        yield found


def test_wrong_broker_names_the_leader_and_all_brokers(cluster: MovingCluster) -> None:
    cluster.move("t", 0, 1)
    cluster.settle()
    epochs = [led.leader_epoch for led in cluster.controller.cluster.topics["t"].partitions]
    stubs = [BusStub(grpc.insecure_channel(address)) for address in cluster.addresses]
    expected = pb.CurrentLeader(
        broker=pb.Broker(broker_id=0, host="127.0.0.1", port=cluster.brokers[0].port), leader_epoch=epochs[1]
    )
    produce = pb.ProduceRequest(
        partitions=[
            pb.PartitionProduceData(topic="t", partition=1, records=pb.RecordList(records=[pb.Record(value=b"x")]))
        ]
    )
    fetch = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=1)])
    for answers in (stubs[1].ProduceOnce(produce), stubs[1].FetchOnce(fetch)):
        (answer,) = answers.partitions
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader == expected
    (produced,) = stubs[0].ProduceOnce(produce).partitions
    assert (produced.error_code, produced.HasField("current_leader")) == (0, False)
    fetch.partitions[0].current_leader_epoch = 0
    (fenced,) = stubs[0].FetchOnce(fetch).partitions
    assert (fenced.error_code, fenced.current_leader) == (ErrorCode.FENCED_LEADER_EPOCH, expected)
    for stub in stubs:
        described = stub.Metadata(pb.MetadataRequest(topics=["t"]))
        assert {broker.broker_id for broker in described.brokers} == {0, 1}
        (topic,) = described.topics
        found = [(one.leader_id, one.leader_epoch, one.error_code) for one in topic.partitions]
        assert found == [(1, epochs[0], 0), (0, epochs[1], 0)]


def test_first_address_that_no_broker_listens_at_is_passed_over(cluster: MovingCluster) -> None:
    cluster.move("t", 0, 0)
    addresses = ",".join(cluster.bootstrap)
    with Producer(addresses) as producer:
        assert producer.send("t", b"x", partition=0).result(50).offset == 0
    for arguments in (["topics", "describe", "t"], ["consume", "t/0", "--max", "1"]):
        result = CliRunner().invoke(cli, [*arguments, "--address", addresses], prog_name="bus")
        assert result.exit_code == 0, result.output

    async def read() -> int:
        async with AsyncConsumer(addresses, auto_offset_reset="earliest") as consumer:
            await consumer.assign(PARTITIONS)
            return len(await consumer.poll(20_000))

    assert asyncio.run(read()) == 1


def test_consumer_follows_a_leader_without_asking_for_metadata(
    cluster: MovingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    call = Cluster.call

    def note(self: Cluster, method: str, *arguments: Any, **options: Any) -> Any:
        asked.append(method)
        return call(self, method, *arguments, **options)

    with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
        consumer.assign(PARTITIONS)
        consumer.seek_to_beginning()
        for leader_id in (1, 0, 1, 0):
            consumer.pause(PARTITIONS)  # a broker that has yet to hear of it would be asked too early
            cluster.move("t", leader_id, 0, 1)
            cluster.settle()
            consumer.resume(PARTITIONS)
            for partition in (0, 1):
                producer.send("t", b"x", partition=partition).result(50)
            seen = 0
            while seen < 2:
                seen += len(consumer.poll(20_000))
            if not asked:
                monkeypatch.setattr(Cluster, "call", note)
                asked.append("nothing yet")
    assert set(asked) <= {"nothing yet", "ResumeProducer"}


def test_producer_consumer_and_group_carry_on_while_every_leader_moves(cluster: MovingCluster, tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    is_over = threading.Event()

    def consume() -> None:
        with Consumer(
            cluster.bootstrap, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=50
        ) as reader:
            reader.subscribe(["t"])
            while not is_over.is_set():
                for record in reader.poll(200):
                    seen[record.partition].append(int(record.value))

    thread = threading.Thread(target=consume)
    thread.start()
    count = 0
    with Producer(cluster.bootstrap, linger_ms=1) as producer:
        for turn in range(12):
            for _ in range(100):
                for partition in (0, 1):
                    producer.send("t", b"%d" % count, partition=partition)
                count += 1
            leader_id = turn % 2
            cluster.move("t", leader_id, turn % 2)
            cluster.move(CONSUMER_OFFSETS_TOPIC, 1 - leader_id, 0, 1)
            cluster.move("t", 1 - leader_id, 1 - turn % 2)
        producer.flush(timeout=60)
    expected = list(range(count))
    deadline = threading.Event()
    for _ in range(600):
        if all(len(found) >= count for found in seen.values()):
            break
        deadline.wait(0.1)
    is_over.set()
    thread.join(30)
    for partition in (0, 1):
        rows = DeltaTable(tmp_path / f"root/topics/t/{partition}").to_pyarrow_table().sort_by("offset")
        assert [int(value) for value in rows.column("value").to_pylist()] == expected
        assert seen[partition] == expected
    with Admin([NOWHERE, *cluster.addresses]) as admin:
        committed = admin.list_group_offsets("g")
        assert {partition: found.offset for partition, found in committed.items()} == dict.fromkeys(PARTITIONS, count)
        assert [group.group_id for group in admin.list_groups()] == ["g"]


@pytest.mark.parametrize("leader_id", [0, 1])
def test_broker_that_finds_a_higher_epoch_in_its_table_has_the_controller_raise_its_own(
    cluster: MovingCluster, tmp_path: Path, leader_id: int
) -> None:
    """The metadata are older than the table, as after a repair or out of a backup."""
    with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"before", partition=0).result(50)
        topic_id = cluster.controller.cluster.topics["t"].topic_id
        storage = open_storage(str(tmp_path / "root"), exclusive=False)
        table = storage.open_partition(PARTITIONS[0], topic_id=topic_id)
        assert isinstance(table.lead(50, NOW_MS, fence=True), Committed)
        cluster.move("t", leader_id, 0)
        assert producer.send("t", b"after", partition=0).result(50).offset == 1
        assert cluster.controller.cluster.leadership(PARTITIONS[0]) == Leadership(leader_id, 51)
