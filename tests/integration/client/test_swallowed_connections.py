"""A network that swallows what is sent on connections that are open, without a word, while new ones work: a load
balancer, NAT or firewall that has forgotten them. Each part of a client goes on after one time-out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bus.aio
from bus import Admin, BusError, Consumer, ErrorCode, Producer, TopicPartition
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.fake_broker import FakeBroker
from tests.support.tcp_proxy import Link, TcpProxy

TIMES = {"request_timeout_ms": 1_000}
PATIENCE_S = 60.0
T0 = TopicPartition("t", 0)


class Site:
    """A broker, and the address behind the network at which clients know it."""

    def __init__(self, broker: FakeBroker, link: Link) -> None:
        self.broker = broker
        self.link = link
        broker.cluster.create("t")
        self.publish(is_behind_network=True)

    def publish(self, *, is_behind_network: bool) -> None:
        self.broker.cluster.addresses[0] = self.link.address if is_behind_network else self.broker.address

    def append(self, value: bytes) -> None:
        """Append by a client on the other side of the network."""
        self.publish(is_behind_network=False)
        with Producer([self.broker.address]) as producer:
            producer.send("t", value).result(PATIENCE_S)
        self.publish(is_behind_network=True)

    def consumer(self, **configs: Any) -> Consumer:
        return Consumer(
            [self.link.address],
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **TIMES,
            **configs,
        )


@pytest.fixture
def site() -> Iterator[Site]:
    with FakeBroker() as broker, TcpProxy() as proxy:
        yield Site(broker, proxy.link(broker.address))


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def read_one(consumer: Consumer) -> bytes | None:
    found: list[bytes | None] = []
    wait_until(lambda: found.extend(record.value for record in consumer.poll(50)) or found)
    (value,) = found
    return value


def test_producer_sends_on_another_connection(site: Site) -> None:
    with Producer([site.link.address], **TIMES) as producer:
        assert producer.send("t", b"0").result(PATIENCE_S).offset == 0
        site.link.swallow()
        assert producer.send("t", b"1").result(PATIENCE_S).offset == 1
        assert producer.send("t", b"2").result(PATIENCE_S).offset == 2
    assert site.broker.cluster.topics["t"].partitions[0].values() == [b"0", b"1", b"2"]


def test_producer_sends_again_and_again_where_the_network_remembers_no_connection_until_then(site: Site) -> None:
    with Producer([site.link.address], **TIMES) as producer:
        for number in range(3):
            assert producer.send("t", b"v").result(PATIENCE_S).offset == number
            site.link.swallow()
    assert site.link.swallowed_count >= 3


def test_consumer_reads_on_by_another_connection(site: Site) -> None:
    site.append(b"0")
    with site.consumer() as consumer:
        consumer.assign([T0])
        assert read_one(consumer) == b"0"
        site.link.swallow()
        site.append(b"1")
        assert read_one(consumer) == b"1"


def test_consumer_whose_fetches_are_cut_before_their_time_out_reads_on(site: Site) -> None:
    """A seek cuts a fetch that is under way, and another stream follows: no request ever waits its whole time."""
    site.append(b"0")
    with site.consumer() as consumer:
        consumer.assign([T0])
        assert read_one(consumer) == b"0"
        site.link.swallow()
        deadline_s = time.monotonic() + PATIENCE_S
        while not consumer.poll(100):
            assert time.monotonic() < deadline_s
            consumer.seek(T0, 0)


def test_member_heartbeats_commits_and_reads_by_another_connection(site: Site) -> None:
    site.append(b"0")
    coordinator = site.broker.cluster.coordinator
    with site.consumer(session_timeout_ms=120_000, heartbeat_interval_ms=100) as consumer:
        consumer.subscribe(["t"])
        assert read_one(consumer) == b"0"
        rebalances = coordinator.groups["g"].rebalances
        site.link.swallow()
        consumer.commit()
        before = coordinator.heartbeats
        wait_until(lambda: coordinator.heartbeats > before)
        site.append(b"1")
        assert read_one(consumer) == b"1"
        consumer.commit()
        assert coordinator.groups["g"].rebalances == rebalances, "the member was taken for dead"
    assert coordinator.committed("g") == {("t", 0): 2}


def test_heartbeat_is_late_in_a_third_of_the_session(site: Site) -> None:
    site.append(b"0")
    coordinator = site.broker.cluster.coordinator
    times = {**TIMES, "request_timeout_ms": 300_000}
    with Consumer(
        [site.link.address],
        group_id="g",
        auto_offset_reset="earliest",
        session_timeout_ms=9_000,
        heartbeat_interval_ms=100,
        **times,
    ) as consumer:
        consumer.subscribe(["t"])
        assert read_one(consumer) == b"0"
        site.link.swallow()
        before = coordinator.heartbeats
        wait_until(lambda: coordinator.heartbeats > before + 1)


def test_administrator_asks_by_another_connection(site: Site) -> None:
    with Admin([site.link.address], **TIMES) as admin:
        assert admin.list_topics() == ["t"]
        site.link.swallow()
        assert admin.list_topics() == ["t"]


class BusyBroker(FakeBroker):
    """Its maintenance has one answer, and no end until `is_over`; swaps of files wait as long. With
    `ends_when_asked` that is as soon as a client asks what it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        self.is_asked_to_swap = threading.Event()
        self.ends_when_asked = False

    def ApiVersions(self, request: pb.ApiVersionsRequest, context: Any) -> pb.ApiVersionsResponse:
        if self.ends_when_asked:
            self.is_over.set()
        return super().ApiVersions(request, context)

    def MaintainLog(self, request: pb.MaintainLogRequest, context: Any) -> Iterator[pb.MaintainLogResponse]:
        yield pb.MaintainLogResponse(partition=0)
        self.is_over.wait(PATIENCE_S)

    def SwapFiles(self, request: pb.SwapFilesRequest, context: Any) -> pb.SwapFilesResponse:
        self.is_asked_to_swap.set()
        self.is_over.wait(PATIENCE_S)
        return pb.SwapFilesResponse(version=7)

    def stop(self) -> None:
        self.is_over.set()
        super().stop()


@pytest.fixture
def busy() -> Iterator[Site]:
    with BusyBroker() as broker, TcpProxy() as proxy:
        yield Site(broker, proxy.link(broker.address))


def first_answer_of(call: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The answers behind the first one. A machine that is busy may be too slow for it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answers = call()
        try:
            next(answers)
        except BusError:
            if time.monotonic() > deadline_s:
                raise
        else:
            return answers


def test_maintenance_that_takes_long_is_not_waited_for_on_a_dead_connection(busy: Site) -> None:
    with Admin([busy.link.address], **TIMES) as admin:
        answers = first_answer_of(lambda: admin.maintain_log("t", "roll"))
        busy.link.swallow()
        with pytest.raises(BusError, match="nothing comes on its connection any more") as caught:
            next(answers)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert admin.list_topics() == ["t"]


def test_call_with_a_long_time_out_is_not_waited_for_on_a_dead_connection(busy: Site) -> None:
    broker = busy.broker
    assert isinstance(broker, BusyBroker)

    def swallow_once_asked() -> None:
        if broker.is_asked_to_swap.wait(PATIENCE_S):
            busy.link.swallow()

    with Admin([busy.link.address], **TIMES) as admin:
        swallowing = threading.Thread(target=swallow_once_asked)
        swallowing.start()
        with pytest.raises(BusError, match="nothing comes on its connection any more"):
            admin.swap_files("t", 0, ["a"], ["b"], timeout_ms=300_000)
        swallowing.join()


def test_call_that_takes_longer_than_a_request_is_waited_for_while_its_connection_lives(busy: Site) -> None:
    assert isinstance(busy.broker, BusyBroker)
    with Admin([busy.link.address], request_timeout_ms=4_000) as admin:
        admin.list_topics()
        busy.broker.ends_when_asked = True
        assert admin.swap_files("t", 0, ["a"], ["b"], timeout_ms=300_000) == 7
        assert busy.broker.is_over.is_set()


def test_awaited_clients_go_on_by_another_connection(site: Site) -> None:
    async def run() -> list[bytes | None]:
        async with (
            bus.aio.Producer([site.link.address], **TIMES) as producer,
            bus.aio.Consumer([site.link.address], auto_offset_reset="earliest", **TIMES) as consumer,
        ):
            await consumer.assign([T0])
            read: list[bytes | None] = []
            for number in range(2):
                await producer.send("t", b"%d" % number)
                while len(read) <= number:
                    read += [record.value for record in await consumer.poll(50)]
                site.link.swallow()
            return read

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == [b"0", b"1"]


def test_connections_that_were_left_are_closed(site: Site) -> None:
    with Admin([site.link.address], **TIMES) as admin:
        for _ in range(3):
            admin.list_topics()
            site.link.swallow()
        wait_until(lambda: site.link.connection_count <= 1)
