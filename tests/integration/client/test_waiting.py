"""Clients that start before their broker or their topic, and brokers that hang: what is waited for, and for how long.

No test measures time. A client that does not wait fails; one that waits longer than it was told meets the test's own
time-out, since what it could wait for instead lasts an hour.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bus import Admin, BusError, ErrorCode, NewTopic, Producer, TopicPartition, aio
from bus.client.connection.cluster import Cluster
from bus.client.first_contact import broker_needed
from bus.settings.broker import BrokerConfig
from tests.support.broker_process import free_port
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import BreakStream, FakeBroker

WAIT_S = 30
HOUR_MS = 3_600_000
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
NOT_CREATED = BrokerConfig(auto_create_topics_enable=False)


class Watched:
    """Tells when a client has failed to get an answer, and is about to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = threading.Event()
        pause = Cluster._pause

        def watched(cluster: Cluster, attempt: int, error: BusError, deadline: float) -> bool:
            self.waits.set()
            return pause(cluster, attempt, error, deadline)

        monkeypatch.setattr(Cluster, "_pause", watched)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


PRODUCER_CALLS: list[Callable[[Producer], Any]] = [
    lambda producer: producer.send("t", b"a").result(WAIT_S).offset,
    lambda producer: producer.send_batch("t", pa.table({"value": [b"a"]})).result(WAIT_S)[0].base_offset,
    lambda producer: producer.partitions_for("t")[0],
]


@pytest.mark.parametrize("call", PRODUCER_CALLS)
def test_producer_waits_for_a_broker_that_starts_later(call: Callable[[Producer], Any], watched: Watched) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Producer(address, **QUICK) as producer, ThreadPoolExecutor(1) as thread:
        calling = thread.submit(call, producer)
        assert watched.waits.wait(WAIT_S)
        with FakeBroker(address=address) as broker:
            broker.cluster.create("t")
            assert calling.result(WAIT_S) == 0
            producer.flush(WAIT_S)


def test_named_producer_waits_for_a_broker_that_starts_later(watched: Watched) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Producer(address, name="loader", **QUICK) as producer, ThreadPoolExecutor(1) as thread:
        calling = thread.submit(producer.last_sequence, "t", 0)
        assert watched.waits.wait(WAIT_S)
        with FakeBroker(address=address) as broker:
            broker.cluster.create("t")
            assert calling.result(WAIT_S) is None
            producer.send("t", b"a").result(WAIT_S)
            producer.flush(WAIT_S)


ADMIN_CALLS: list[Callable[[Admin], Any]] = [
    lambda admin: admin.list_topics(),
    lambda admin: admin.create_topics([NewTopic("new")]),
    lambda admin: admin.list_offsets({TopicPartition("t", 0): -1}),
    lambda admin: admin.list_group_offsets("group"),
]


@pytest.mark.parametrize("call", ADMIN_CALLS)
def test_admin_waits_for_a_broker_that_starts_later(call: Callable[[Admin], Any], watched: Watched) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Admin(address, **QUICK) as admin, ThreadPoolExecutor(1) as thread:
        calling = thread.submit(call, admin)
        assert watched.waits.wait(WAIT_S)
        with FakeBroker(address=address) as broker:
            broker.cluster.create("t")
            calling.result(WAIT_S)


def test_asyncio_producer_waits_for_a_broker_that_starts_later(watched: Watched) -> None:
    address = f"127.0.0.1:{free_port()}"

    async def scenario() -> None:
        async with aio.Producer(address, **QUICK) as producer:
            sending = producer.send("t", b"a")
            assert await asyncio.to_thread(watched.waits.wait, WAIT_S)
            with FakeBroker(address=address) as broker:
                broker.cluster.create("t")
                assert (await sending).offset == 0
                await producer.flush()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_topic_that_an_asyncio_producer_waits_for_holds_up_no_other_one(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    async def scenario() -> None:
        async with aio.Producer(broker.address, **QUICK) as producer:
            late = [producer.send("late", b"%d" % number) for number in range(3)]
            assert (await producer.send("t", b"a")).offset == 0
            assert not any(future.done() for future in late)
            broker.cluster.create("late")
            assert [(await future).offset for future in late] == [0, 1, 2]

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_the_first_call_after_a_broker_has_come_succeeds_though_many_have_failed() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Admin(address, retries=0, reconnect_backoff_ms=HOUR_MS) as admin:
        for _ in range(5):
            with pytest.raises(BusError, match=f"bus serve --listen {address}"):
                admin.list_topics()
        with FakeBroker(address=address):
            assert admin.list_topics() == []


def test_what_changes_something_is_sent_again_only_if_it_was_never_sent(broker: FakeBroker) -> None:
    with Admin(broker.address, **QUICK) as admin:
        admin.list_topics()
        broker.control_script.append(BreakStream(is_appended=False))  # the question before it, which is repeated
        admin.create_topics([NewTopic("once")])
        assert broker.calls.count("CreateTopics") == 1


def test_no_broker_is_told_when_the_time_is_over() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Producer(address, max_block_ms=2_000) as producer:
        for call in (lambda: producer.send("t", b"a"), lambda: producer.partitions_for("t")):
            with pytest.raises(
                BusError, match=r"'t' not present in metadata after 2000 ms .*: no broker listens"
            ) as caught:
                call()
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    with Admin(address, default_api_timeout_ms=2_000) as admin, pytest.raises(BusError, match="no broker listens"):
        admin.list_topics()


def test_client_of_a_shell_is_told_at_once_that_no_broker_is_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    with broker_needed():
        admin = Admin(address, default_api_timeout_ms=HOUR_MS)
    with admin, pytest.raises(BusError, match="no broker listens") as caught:
        admin.list_topics()
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


def test_closing_ends_a_call_that_waits(watched: Watched) -> None:
    admin = Admin(f"127.0.0.1:{free_port()}", default_api_timeout_ms=HOUR_MS, reconnect_backoff_ms=HOUR_MS)
    with ThreadPoolExecutor(1) as thread:
        calling = thread.submit(admin.list_topics)
        assert watched.waits.wait(WAIT_S)
        admin.close()
        assert isinstance(calling.exception(WAIT_S), BusError)


# ---------------------------------------------------------------- brokers that hang


@pytest.fixture
def hung(broker: FakeBroker) -> Any:
    """It takes calls and does not answer."""
    broker.cluster.create("t")
    gate = threading.Event()
    broker.on_metadata = lambda: gate.wait(WAIT_S)
    yield broker
    gate.set()


def test_time_that_was_given_holds_against_a_broker_that_hangs(hung: FakeBroker) -> None:
    producer = Producer(hung.address, max_block_ms=50, request_timeout_ms=HOUR_MS, delivery_timeout_ms=2 * HOUR_MS)
    with producer, pytest.raises(BusError, match="no answer in time") as caught:
        producer.send("t", b"a")
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    with Admin(hung.address, default_api_timeout_ms=50, request_timeout_ms=HOUR_MS) as admin:
        for call in ADMIN_CALLS[:3]:
            with pytest.raises(BusError) as caught:
                call(admin)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_closing_in_no_time_ends_what_waits_for_a_broker_that_hangs(hung: FakeBroker) -> None:
    asked = threading.Event()
    held = hung.on_metadata
    hung.on_metadata = lambda: (asked.set(), held and held())
    producer = Producer(hung.address, request_timeout_ms=HOUR_MS, delivery_timeout_ms=2 * HOUR_MS)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(producer.send, "t", b"a")
        assert asked.wait(WAIT_S)
        producer.close(0)
        assert isinstance(sending.exception(WAIT_S), BusError)
    hung.on_metadata = held


# ---------------------------------------------------------------- topics that are not there yet


def test_topic_is_created_for_a_producer_that_asks_for_it(tmp_path: Path) -> None:
    with running_broker(tmp_path, config=BrokerConfig(num_partitions=3)) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as first, Producer(address) as second:
            with pytest.raises(BusError, match="'new'"):
                admin.describe_topics(["new"])
            assert admin.list_topics() == []
            sent = [producer.send("new", b"a") for producer in (first, second)]
            assert {future.result(WAIT_S).topic for future in sent} == {"new"}
            assert first.partitions_for("new") == [0, 1, 2]
            for name in ("bad name", "", "__mine", "..", "n" * 250):
                with pytest.raises(BusError) as caught:
                    first.send(name, b"a")
                assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert admin.list_topics(include_internal=True) == ["new"]


def test_topic_that_is_not_created_by_itself_is_waited_for(tmp_path: Path, watched: Watched) -> None:
    with running_broker(tmp_path, config=NOT_CREATED) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address, **QUICK) as producer, ThreadPoolExecutor(1) as thread:
            sending = thread.submit(producer.send, "late", b"a")
            assert watched.waits.wait(WAIT_S)
            admin.create_topics([NewTopic("late", 2)])
            assert sending.result(WAIT_S).result(WAIT_S).topic == "late"
        with Producer(address, max_block_ms=500) as producer:
            with pytest.raises(BusError, match="'never' not present in metadata after 500 ms") as caught:
                producer.send("never", b"a")
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            with pytest.raises(BusError, match="from 0 to 1, found 2"):
                producer.send("late", b"a", partition=2)
        with broker_needed():
            producer = Producer(address, max_block_ms=HOUR_MS)
        with producer, pytest.raises(BusError, match="expected an existing topic, found 'never'"):
            producer.send("never", b"a")


def test_own_topics_of_the_bus_are_never_created_for_a_client(tmp_path: Path) -> None:
    with running_broker(tmp_path, config=replace(BrokerConfig(), num_partitions=2)) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Producer(address, max_block_ms=500) as producer:
            for name in ("__consumer_offsets", "__cluster_metadata"):
                with pytest.raises(BusError) as caught:
                    producer.send(name, b"a")
                assert caught.value.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_TOPIC_EXCEPTION)
        with Admin(address) as admin:
            assert admin.list_topics(include_internal=True) == []
