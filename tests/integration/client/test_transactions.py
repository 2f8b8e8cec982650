"""Transactions of the SDK with the real broker: what is committed is there, at once; what is not never is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import bus.aio
from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer, TopicPartition
from bus.client.values import GroupMetadata
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker

WAIT_S = 30
QUICK: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    quick = BrokerConfig(group_initial_rebalance_delay_ms=0)
    with running_broker(tmp_path_factory.mktemp("root") / "data", config=quick) as broker:
        yield f"127.0.0.1:{broker.port}"


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:200]
    with Admin(address) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


def transactional(address: str, transactional_id: str, **configs: Any) -> Producer:
    return Producer(address, transactional_id=transactional_id, **{**QUICK, **configs})


def values_of(address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    place = TopicPartition(topic, partition)
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        count = consumer.end_offsets([place])[place]
        found: list[bytes | None] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(WAIT_S * 1000)]
    return found


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(BusError) as caught:
        call()
    return caught.value.code


def test_committed_records_are_in_one_version_of_each_partition_and_aborted_ones_in_none(
    address: str, topic: str
) -> None:
    with transactional(address, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        both = [TopicPartition(topic, number) for number in range(2)]
        staged = [producer.send(topic, b"%d" % number, partition=number % 2) for number in range(10)]
        assert {future.result(WAIT_S).offset for future in staged} == {-1}
        assert values_of(address, topic) == []
        rows = producer.commit_transaction()
        assert {of: found.base_offset for of, found in rows.items()} == dict.fromkeys(both, 0)
        assert values_of(address, topic) == [b"0", b"2", b"4", b"6", b"8"]
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0).result(WAIT_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"10", partition=0)
        assert values_of(address, topic) == [b"0", b"2", b"4", b"6", b"8", b"10"]


def test_producer_goes_on_when_the_topic_of_its_last_transactions_is_deleted_and_the_broker_has_restarted(
    tmp_path: Path,
) -> None:
    """Such a producer writes to a new topic each day."""
    with BrokerProcess(tmp_path / "data") as process, transactional(process.address, "daily") as producer:
        with Admin(process.address) as admin:
            admin.create_topics([NewTopic("monday", 1), NewTopic("tuesday", 1)])
            producer.init_transactions()
            for number in range(5):
                with producer.transaction():
                    producer.send("monday", b"%d" % number)
            admin.delete_topics(["monday"])
        process.kill()
        process.start()
        producer.begin_transaction()
        error = producer.send("tuesday", b"never").exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.TRANSACTION_ABORTABLE
        assert "the topic of its last transactions is deleted" in str(error)
        assert refusal(producer.commit_transaction) is ErrorCode.TRANSACTION_ABORTABLE
        producer.abort_transaction()
        for number in range(3):
            with producer.transaction():
                producer.send("tuesday", b"%d" % number)
        assert values_of(process.address, "tuesday") == [b"0", b"1", b"2"]


def test_partitions_of_a_topic_are_told_between_transactions(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        assert producer.partitions_for(topic) == [0, 1]


def test_many_transactions_of_one_producer_follow_one_another(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        producer.init_transactions()
        for number in range(20):
            with producer.transaction():
                producer.send(topic, b"%d" % number, partition=0)
        with producer.transaction():
            pass
    assert values_of(address, topic) == [b"%d" % number for number in range(20)]


def test_block_that_fails_leaves_nothing_and_its_futures_tell(address: str, topic: str) -> None:
    with transactional(address, topic, linger_ms=60_000) as producer:
        producer.init_transactions()
        futures = []

        def fail() -> None:
            with producer.transaction():
                futures.append(producer.send(topic, b"never", partition=0))
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        error = futures[0].exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.TRANSACTION_ABORTABLE
        with producer.transaction():
            producer.send(topic, b"there", partition=0)
    assert values_of(address, topic) == [b"there"]


def test_block_whose_transaction_ended_inside_it_says_so(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        producer.init_transactions()

        def end_inside(end: Callable[[], object], value: bytes) -> None:
            with producer.transaction():
                producer.send(topic, value, partition=0)
                end()

        for end, value in ((producer.commit_transaction, b"committed"), (producer.abort_transaction, b"aborted")):
            with pytest.raises(BusError, match="committed or aborted inside the block: leave commit_transaction"):
                end_inside(end, value)
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert values_of(address, topic) == [b"committed", b"next"]


def test_record_that_is_refused_lets_the_transaction_only_be_aborted(address: str, topic: str) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(f"{topic}-small", 1, configs={"max.message.bytes": "1000"})])
    with transactional(address, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        assert producer.send(f"{topic}-small", b"x" * 2_000).exception(WAIT_S) is not None
        assert refusal(producer.commit_transaction) is ErrorCode.MESSAGE_TOO_LARGE
        assert refusal(lambda: producer.send(topic, b"never")) is ErrorCode.MESSAGE_TOO_LARGE
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"there", partition=0)
            producer.send(f"{topic}-small", b"there")
    assert values_of(address, topic) == values_of(address, f"{topic}-small") == [b"there"]


def test_younger_instance_ends_what_the_older_left_open_and_fences_it(address: str, topic: str) -> None:
    with transactional(address, topic) as older, transactional(address, topic) as younger:
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"never", partition=0).result(WAIT_S)
        younger.init_transactions()
        assert refusal(older.commit_transaction) is ErrorCode.PRODUCER_FENCED
        assert refusal(older.abort_transaction) is ErrorCode.PRODUCER_FENCED
        with younger.transaction():
            younger.send(topic, b"there", partition=0)
    assert values_of(address, topic) == [b"there"]


def test_transaction_that_its_time_out_has_aborted_can_be_aborted_and_the_producer_goes_on(
    address: str, topic: str
) -> None:
    with transactional(address, topic, transaction_timeout_ms=200) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0).result(WAIT_S)
        wait_until_aborted(address, topic)
        assert refusal(producer.commit_transaction) is ErrorCode.TRANSACTION_ABORTABLE
        producer.abort_transaction()
    with transactional(address, topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"there", partition=0)
    assert values_of(address, topic) == [b"there"]


def wait_until_aborted(address: str, transactional_id: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while state_of(address, transactional_id) != "CompleteAbort":
        assert time.monotonic() < deadline, "the transaction was not aborted in time"
        time.sleep(0.02)


def state_of(address: str, transactional_id: str) -> str:
    request = pb.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    with grpc.insecure_channel(address) as channel:
        (found,) = bus_pb2_grpc.BusStub(channel).DescribeTransactions(request, timeout=WAIT_S).transactions
    state: str = found.state
    return state


# ---------------------------------------------------------------- offsets


def test_offsets_are_committed_with_the_records_or_not_at_all(address: str, topic: str) -> None:
    source, group = TopicPartition(topic, 1), GroupMetadata(topic)
    with transactional(address, topic) as producer, Admin(address) as admin:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        producer.send_offsets_to_transaction({source: 3}, group)
        producer.abort_transaction()
        assert admin.list_group_offsets(topic) == {}
        with producer.transaction():
            producer.send(topic, b"there", partition=0)
            producer.send_offsets_to_transaction({source: 3}, group)
            producer.send_offsets_to_transaction({source: 5}, group)
            assert admin.list_group_offsets(topic) == {}
        assert {of: found.offset for of, found in admin.list_group_offsets(topic).items()} == {source: 5}
        with producer.transaction():
            producer.send_offsets_to_transaction({source: 6}, group)
        assert {of: found.offset for of, found in admin.list_group_offsets(topic).items()} == {source: 6}
    assert values_of(address, topic) == [b"there"]


def test_consumer_that_is_no_member_any_more_cannot_commit_with_the_transaction(address: str, topic: str) -> None:
    zombie = GroupMetadata(topic, 1, "gone")
    with transactional(address, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        offsets = {TopicPartition(topic, 1): 3}
        assert refusal(lambda: producer.send_offsets_to_transaction(offsets, zombie)) is ErrorCode.ILLEGAL_GENERATION
        assert refusal(producer.commit_transaction) is ErrorCode.ILLEGAL_GENERATION
        producer.abort_transaction()
    assert values_of(address, topic) == []


def test_loop_that_dies_and_loses_its_partitions_counts_each_record_once(address: str, topic: str) -> None:
    """Read, work, write: the first one dies with its transaction open, and is a zombie when it comes back."""
    out = f"{topic}-out"
    with Admin(address) as admin:
        admin.create_topics([NewTopic(out, 1)])
    reading: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Producer(address, **QUICK) as source:
        for number in range(20):
            source.send(topic, b"%d" % number, partition=0)
    with (
        Consumer(address, max_poll_records=5, **reading) as zombies_consumer,
        transactional(address, f"{topic}-1") as zombie,
        transactional(address, f"{topic}-2") as successor,
    ):
        zombie.init_transactions()
        zombies_consumer.subscribe([topic])
        step(zombies_consumer, zombie, out)
        zombie.begin_transaction()
        records = poll_some(zombies_consumer)
        for record in records:
            zombie.send(out, record.value)
        zombie.send_offsets_to_transaction(zombies_consumer.consumed(), zombies_consumer.group_metadata())
        member = zombies_consumer.group_metadata()
        with Admin(address) as admin:
            admin.remove_members(topic, member_ids=[member.member_id])
        with Consumer(address, max_poll_records=5, **reading) as consumer:
            successor.init_transactions()
            consumer.subscribe([topic])
            while not consumer.assignment():
                assert consumer.poll(20) == []
            assert consumer.poll(300) == [], "the offset may yet be committed"
            zombie.commit_transaction()
            zombie.begin_transaction()
            late = {TopicPartition(topic, 0): 1}
            assert refusal(lambda: zombie.send_offsets_to_transaction(late, member)) in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
            )
            for _ in range(2):
                step(consumer, successor, out)
    assert values_of(address, out) == [b"%d" % number for number in range(20)]


def poll_some(consumer: Consumer) -> list[Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        records = consumer.poll(200)
        if records:
            return records
    raise AssertionError("no record came")


def step(consumer: Consumer, producer: Producer, out: str) -> None:
    with producer.transaction():
        for record in poll_some(consumer):
            producer.send(out, record.value)
        producer.send_offsets_to_transaction(consumer.consumed(), consumer.group_metadata())


# ---------------------------------------------------------------- other doors


def test_producer_that_is_closed_aborts_what_is_open(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0).result(WAIT_S)
        producer.send_offsets_to_transaction({TopicPartition(topic, 1): 3}, GroupMetadata(topic))
    assert state_of(address, topic) == "CompleteAbort"
    with Admin(address) as admin:
        assert admin.list_group_offsets(topic) == {}


def test_asyncio_program_commits_and_aborts_all_that_it_has_sent(address: str, topic: str) -> None:
    async def scenario() -> None:
        async with bus.aio.Producer(address, transactional_id=topic, **QUICK) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for number in range(100):
                    producer.send(topic, b"%d" % number, partition=0)
            await producer.begin_transaction()
            future = producer.send(topic, b"never", partition=0)
            await producer.abort_transaction()
            await asyncio.wait([future])
            with pytest.raises(LookupError):
                await fail(producer)
            with pytest.raises(BusError, match="committed or aborted inside the block"):
                await abort_inside(producer)
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({TopicPartition(topic, 1): 3}, GroupMetadata(topic))
            assert await producer.commit_transaction() == {}

    async def fail(producer: bus.aio.Producer) -> None:
        async with producer.transaction():
            await producer.send(topic, b"never", partition=0)
            raise LookupError

    async def abort_inside(producer: bus.aio.Producer) -> None:
        async with producer.transaction():
            await producer.abort_transaction()

    asyncio.run(scenario())
    assert values_of(address, topic) == [b"%d" % number for number in range(100)]


# ---------------------------------------------------------------- misuse


def test_calls_out_of_place_are_refused_and_nothing_was_sent(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        assert refusal(producer.begin_transaction) is ErrorCode.INVALID_TXN_STATE
        assert refusal(lambda: producer.send(topic, b"x")) is ErrorCode.INVALID_TXN_STATE
        producer.init_transactions()
        for call in (producer.init_transactions, producer.commit_transaction, producer.abort_transaction):
            assert refusal(call) is ErrorCode.INVALID_TXN_STATE
        assert refusal(lambda: producer.send(topic, b"x")) is ErrorCode.INVALID_TXN_STATE
    with Producer(address) as plain:
        assert refusal(plain.init_transactions) is ErrorCode.INVALID_REQUEST
    assert values_of(address, topic) == []


def test_group_is_given_by_the_metadata_of_its_consumer(address: str, topic: str) -> None:
    with transactional(address, topic) as producer:
        producer.init_transactions()
        wrong: Any = "billing"
        with pytest.raises(TypeError, match=r"expected group_metadata as a GroupMetadata, found str: .*group_metadata"):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, wrong)
        with pytest.raises(BusError, match=r"expected send_offsets_to_transaction\(\) in an open transaction"):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GroupMetadata("billing"))
