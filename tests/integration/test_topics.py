"""The life of a topic over the wire: created, altered, grown, deleted, created again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import Admin, BusError, Consumer, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from tests.support.broker_thread import running_broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root") as broker:
        yield broker


@pytest.fixture
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def test_recreated_topic_is_another_topic(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        for round_number in range(5):
            admin.create_topics([NewTopic("t", partitions=2)])
            metadata = producer.send("t", b"%d" % round_number, partition=1).result(50)
            assert metadata.offset == 0, "a record of the deleted topic is still there"
            admin.delete_topics(["t"])
            assert admin.list_topics() == []


def test_append_to_a_deleted_topic_is_refused(address: str) -> None:
    with Admin(address) as admin, Producer(address, retries=0) as producer:
        admin.create_topics([NewTopic("t", partitions=1)])
        producer.send("t", b"v").result(50)
        admin.delete_topics(["t"])
        with pytest.raises(BusError) as caught:
            producer.send("t", b"w").result(50)
        assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_new_partitions_take_records_at_once(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topics([NewTopic("t", partitions=1)])
        admin.create_partitions({"t": 3})
        assert len(admin.describe_topics(["t"])["t"].partitions) == 3
        with Producer(address) as fresh:
            assert fresh.send("t", b"v", partition=2).result(50).offset == 0
        assert producer.send("t", b"v", partition=0).result(50).offset == 0


def test_altered_config_counts_for_the_next_record(address: str) -> None:
    with Admin(address) as admin, Producer(address, retries=0) as producer:
        admin.create_topics([NewTopic("t", partitions=1)])
        producer.send("t", b"x" * 5000).result(50)
        admin.alter_configs("t", {"max.message.bytes": "1000", "message.timestamp.type": "LogAppendTime"})
        with pytest.raises(BusError, match=r"at most 1000 bytes \(max.message.bytes\)") as caught:
            producer.send("t", b"x" * 5000).result(50)
        assert caught.value.name == "MESSAGE_TOO_LARGE"
        metadata = producer.send("t", b"v", timestamp_ms=5).result(50)
        assert metadata.timestamp_ms > 1_600_000_000_000
        admin.alter_configs("t", delete=["max.message.bytes"])
        producer.send("t", b"x" * 5000).result(50)


def test_offsets_by_time_are_found_through_files(address: str, broker: Broker) -> None:
    partition = TopicPartition("t", 0)
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topics([NewTopic("t", partitions=1)])
        assert consumer.offsets_for_times({partition: 0}) == {partition: None}
        for timestamp_ms in (1_000, 3_000, 2_000, 5_000, 4_000):
            producer.send("t", b"v", timestamp_ms=timestamp_ms).result(50)

        def found(timestamp_ms: int) -> tuple[int, int] | None:
            answer = consumer.offsets_for_times({partition: timestamp_ms})[partition]
            return None if answer is None else (answer.offset, answer.timestamp_ms)

        assert found(0) == (0, 1_000)
        assert found(1_001) == (1, 3_000)
        assert found(3_001) == (3, 5_000)
        assert found(5_001) is None
        listed = admin.list_offsets({partition: -3})[partition]
        assert (listed.offset, listed.timestamp_ms) == (3, 5_000)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 5}
