"""Members of groups and transactional producers whose connections are swallowed by the network, with the real broker:
what they had asked is asked again on another connection, and nothing happens twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from bus import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from bus.client.assignors import MemberSubscription
from bus.client.connection.group_requests import encode_assignment, encode_subscription
from bus.client.values import GroupMetadata
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.model import CONSUMER_PROTOCOL_TYPE
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.tcp_proxy import Link, TcpProxy

TIMES: dict[str, Any] = {"request_timeout_ms": 1_000, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}
PATIENCE_S = 60.0


class Site:
    """A broker, at `address`, and behind the network as clients know it."""

    def __init__(self, address: str, link: Link) -> None:
        self.address = address
        self.link = link
        self.stub = bus_pb2_grpc.BusStub(grpc.insecure_channel(address))

    def create(self, topic: str) -> None:
        with Admin(self.link.address) as admin:
            admin.create_topics([NewTopic(topic, 2)])

    def group(self, group_id: str) -> pb.DescribedGroup:
        (described,) = self.stub.DescribeGroups(
            pb.DescribeGroupsRequest(group_ids=[group_id]), timeout=PATIENCE_S
        ).groups
        return described


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with TcpProxy() as proxy:
        link = proxy.link("127.0.0.1:1")
        config = BrokerConfig(advertise=link.address)
        with running_broker(tmp_path_factory.mktemp("root") / "data", config=config) as broker:
            link.target = f"127.0.0.1:{broker.port}"
            yield Site(link.target, link)


@pytest.fixture
def name(site: Site, request: pytest.FixtureRequest) -> str:
    """Create a topic for this test, and return its name, which the test gives to its group too."""
    found = request.node.name.replace("[", "-").replace("]", "")[:200]
    site.create(found)
    return found


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# ---------------------------------------------------------------- groups


class Leader:
    """The other member of the group, on the broker's side of the network; its calls are made by hand."""

    def __init__(self, site: Site, name: str) -> None:
        self._stub = site.stub
        self._name = name
        self.member_id = self._join("").member_id
        self.sync(self.join(), {})

    def join(self) -> pb.JoinGroupResponse:
        joined = self._join(self.member_id)
        assert (joined.error_code, joined.leader_id) == (pb.ERROR_CODE_NONE, self.member_id)
        return joined

    def _join(self, member_id: str) -> pb.JoinGroupResponse:
        subscription = encode_subscription(MemberSubscription((self._name,)))
        return self._stub.JoinGroup(
            pb.JoinGroupRequest(
                group_id=self._name,
                member_id=member_id,
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocols=[pb.GroupProtocol(name="range", metadata=subscription)],
                client_id="leader",
            ),
            timeout=PATIENCE_S,
        )

    def sync(self, joined: pb.JoinGroupResponse, assignment: Mapping[str, list[TopicPartition]]) -> None:
        answer = self._stub.SyncGroup(
            pb.SyncGroupRequest(
                group_id=self._name,
                generation=joined.generation,
                member_id=self.member_id,
                assignments=[
                    pb.MemberAssignment(member_id=member_id, assignment=encode_assignment(partitions))
                    for member_id, partitions in assignment.items()
                ],
            ),
            timeout=PATIENCE_S,
        )
        assert answer.error_code == pb.ERROR_CODE_NONE

    def leave(self) -> None:
        leaving = pb.LeavingMember(member_id=self.member_id)
        self._stub.LeaveGroup(pb.LeaveGroupRequest(group_id=self._name, members=[leaving]), timeout=PATIENCE_S)


class Polled:
    """A consumer of the group that is polled all the time, by a thread. No time-out of it ends within a test, but for
    that of a request."""

    def __init__(self, site: Site, name: str, **configs: Any) -> None:
        self.assigned: set[TopicPartition] = set()
        self.generation = -1
        self._consumer = Consumer(site.link.address, group_id=name, enable_auto_commit=False, **TIMES, **configs)
        self._consumer.subscribe([name])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="polls")

    def _poll(self) -> None:
        with self._consumer as consumer:
            while not self._is_over.is_set():
                consumer.poll(50)
                self.assigned, self.generation = consumer.assignment(), consumer.group_metadata().generation

    def __enter__(self) -> Polled:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def swallowed(link: Link) -> Iterator[None]:
    """Swallow what is sent on the connections that are open. Others are made, but nothing comes through them before
    the block has ended, however long it takes."""
    link.silence()
    link.swallow()
    try:
        yield
    finally:
        link.mend()


def wait_for_join(site: Site, name: str) -> None:
    """Wait until the join of the second member waits for the first member."""
    wait_until(lambda: (site.group(name).state, len(site.group(name).members)) == ("PreparingRebalance", 2))


def test_member_whose_join_is_swallowed_is_in_the_generation_that_was_made_meanwhile(site: Site, name: str) -> None:
    leader = Leader(site, name)
    with Polled(site, name) as consumer:
        wait_for_join(site, name)
        with swallowed(site.link):
            joined = leader.join()
            (other,) = (member.member_id for member in joined.members if member.member_id != leader.member_id)
            leader.sync(joined, {other: [TopicPartition(name, 1)]})
        wait_until(lambda: consumer.assigned == {TopicPartition(name, 1)})
        assert consumer.generation == joined.generation == 2
        assert [len(site.group(name).members), site.group(name).state] == [2, "Stable"]


def test_member_whose_join_is_swallowed_long_before_the_others_join_keeps_its_place(site: Site, name: str) -> None:
    leader = Leader(site, name)
    with Polled(site, name) as consumer:
        wait_for_join(site, name)
        (other,) = (member for member in site.group(name).members if member.member_id != leader.member_id)
        for _ in range(2):
            site.link.swallow()
            wait_until(lambda: site.link.passing_count)
        joined = leader.join()
        assert {member.member_id for member in joined.members} == {leader.member_id, other.member_id}
        leader.sync(joined, {other.member_id: [TopicPartition(name, 0)]})
        wait_until(lambda: consumer.assigned == {TopicPartition(name, 0)})
        assert consumer.generation == 2


def test_static_member_whose_first_join_is_swallowed_takes_its_own_place(site: Site, name: str) -> None:
    leader = Leader(site, name)
    with Polled(site, name, group_instance_id="desk") as consumer:
        wait_for_join(site, name)
        with swallowed(site.link):
            joined = leader.join()
            (first,) = (member.member_id for member in joined.members if member.group_instance_id == "desk")
            leader.sync(joined, {first: [TopicPartition(name, 1)]})
        wait_until(lambda: consumer.assigned == {TopicPartition(name, 1)})
        assert consumer.generation == joined.generation, "it has what its own twin was given"
        assert {member.group_instance_id for member in site.group(name).members} == {"", "desk"}


def test_leader_whose_join_is_swallowed_assigns_in_the_generation_that_waits_for_it(site: Site, name: str) -> None:
    other = Leader(site, name)
    with Polled(site, name) as consumer:
        wait_for_join(site, name)
        with swallowed(site.link):
            other.leave()
            assert site.group(name).state == "CompletingRebalance"
        wait_until(lambda: len(consumer.assigned) == 2)
        assert consumer.generation == 2


def test_member_whose_sync_is_swallowed_has_its_partitions_without_another_rebalance(site: Site, name: str) -> None:
    leader = Leader(site, name)
    with Polled(site, name) as consumer:
        wait_for_join(site, name)
        joined = leader.join()
        (other,) = (member.member_id for member in joined.members if member.member_id != leader.member_id)
        wait_until(lambda: consumer.generation == 2)
        site.link.swallow()
        leader.sync(joined, {other: [TopicPartition(name, 0)]})
        wait_until(lambda: consumer.assigned == {TopicPartition(name, 0)})
        assert (consumer.generation, site.group(name).state) == (2, "Stable")


# ---------------------------------------------------------------- transactions


@pytest.mark.parametrize("only_answers", [False, True], ids=["all", "answers"])
def test_transactional_producer_goes_on_by_another_connection_and_each_commit_has_its_rows_once(
    site: Site, name: str, only_answers: bool
) -> None:
    place = TopicPartition(name, 0)

    def swallow_if(is_due: bool) -> None:
        if is_due:
            site.link.swallow(only_answers=only_answers)

    with Producer(site.link.address, transactional_id=name, linger_ms=0, **TIMES) as producer:
        producer.partitions_for(name)  # has a connection made
        swallow_if(True)
        producer.init_transactions()
        steps = ("produce", "offsets", "commit", "none")
        for number, swallowed_at in enumerate(steps):
            producer.begin_transaction()
            swallow_if(swallowed_at == "produce")
            producer.send(name, b"%d" % number, partition=0).result(PATIENCE_S)
            swallow_if(swallowed_at == "offsets")
            producer.send_offsets_to_transaction({place: OffsetAndMetadata(number + 1)}, GroupMetadata(name))
            swallow_if(swallowed_at == "commit")
            rows = producer.commit_transaction()
            assert rows[place].base_offset == number
            with Consumer(site.link.address, group_id=name, auto_offset_reset="earliest") as consumer:
                assert consumer.committed([place])[place] == OffsetAndMetadata(number + 1)
                consumer.assign([place])
                consumer.seek(place, 0)
                assert consumer.end_offsets([place])[place] == number + 1
                found: list[bytes | None] = []
                while len(found) <= number:
                    found += [record.value for record in consumer.poll(1_000)]
                assert found == [b"%d" % each for each in range(number + 1)]
