"""The SDK with the real broker: what the fake one cannot judge, the two together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bus import Admin, BusError, Consumer, ConsumerRecord, ErrorCode, NewTopic, Producer, TimestampType, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker

WAIT_S = 30


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("root") / "data") as broker:
        yield f"127.0.0.1:{broker.port}"


def read_all(consumer: Consumer) -> pa.Table:
    """Everything below the high watermarks of this moment."""
    missing = sum(consumer.end_offsets(consumer.assignment()).values())
    tables = []
    while missing > 0:
        table = consumer.poll_arrow(WAIT_S * 1000)
        assert table.num_rows, f"expected {missing} more records, found none"
        tables.append(table)
        missing -= table.num_rows
    return pa.concat_tables(tables)


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while len(found) < count:
        records = consumer.poll(WAIT_S * 1000)
        assert records, f"expected {count} records, found {len(found)}"
        found += records
    return found


def test_keyed_batches_come_back_whole_and_in_order(address: str) -> None:
    rows = 20_000
    table = pa.table(
        {
            "value": [b"value-%d" % number for number in range(rows)],
            "key": [None if number % 50 == 0 else b"key-%d" % (number % 97) for number in range(rows)],
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % number}] if number % 3 else None for number in range(rows)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with (
        Admin(address) as admin,
        Producer(address, compression_type="lz4") as producer,
        Consumer(address, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic("keyed", 4)])
        runs = producer.send_batch("keyed", table).result(WAIT_S)
        assert sum(run.record_count for run in runs) == rows
        consumer.assign(consumer.partitions_for("keyed"))
        found = read_all(consumer)
    assert found.num_rows == rows
    for partition in range(4):
        mine = found.filter(pc.equal(found.column("partition"), partition))
        assert mine.column("offset").to_pylist() == list(range(mine.num_rows))
        numbers = [int(value[6:]) for value in mine.column("value").to_pylist()]
        assert numbers == sorted(numbers)
        expected = table.take(numbers)
        assert mine.column("key").to_pylist() == expected.column("key").to_pylist()
        assert [headers or None for headers in mine.column("headers").to_pylist()] == (
            expected.column("headers").to_pylist()
        )


def test_single_records_come_back_as_they_were_sent(address: str) -> None:
    with (
        Admin(address) as admin,
        Producer(address) as producer,
        Consumer(address, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic("single", configs={"retention.ms": -1})])  # a record of 2020
        producer.send("single", b"a", key=b"k", headers=[("x", b"1"), ("x", None)], timestamp_ms=1_600_000_000_123)
        placed = producer.send("single", None, key=b"gone").result(WAIT_S)
        consumer.assign([TopicPartition("single", 0)])
        first, second = itertools.islice(consumer, 2)
    assert first == (
        *("single", 0, 0, 1_600_000_000_123, TimestampType.CREATE_TIME),
        *(b"k", b"a", [("x", b"1"), ("x", None)], first.leader_epoch),
    )
    assert (second.offset, second.key, second.value, second.headers) == (1, b"gone", None, ())
    assert (placed.offset, placed.timestamp_ms) == (1, second.timestamp_ms)
    assert placed.version >= 1


def test_log_append_time_is_told_to_the_producer_and_the_consumer(address: str) -> None:
    with (
        Admin(address) as admin,
        Producer(address) as producer,
        Consumer(address, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic("appended", configs={"message.timestamp.type": "LogAppendTime"})])
        placed = producer.send("appended", b"a", timestamp_ms=5).result(WAIT_S)
        consumer.assign([TopicPartition("appended", 0)])
        (record,) = consumer.poll(WAIT_S * 1000)
    assert record.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert record.timestamp_ms == placed.timestamp_ms > 5


def test_offsets_are_found_by_time(address: str) -> None:
    here = TopicPartition("timed", 0)
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topics([NewTopic("timed", configs={"retention.ms": -1})])
        for number in range(5):
            producer.send("timed", b"a", timestamp_ms=1_600_000_000_000 + number * 1_000).result(WAIT_S)
        found = consumer.offsets_for_times({here: 1_600_000_001_500})[here]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (2, 1_600_000_002_000)
        assert consumer.offsets_for_times({here: 1_900_000_000_000}) == {here: None}
        assert consumer.beginning_offsets([here]) == {here: 0}
        assert consumer.end_offsets([here]) == {here: 5}
        assert admin.list_offsets({here: -3})[here].offset == 4


def test_configs_are_described_altered_and_given_back(address: str) -> None:
    def retention() -> tuple[str, bool]:
        (found,) = admin.describe_configs("configured", keys=["retention.ms"])
        return found.value, found.is_default

    with Admin(address) as admin:
        admin.create_topics([NewTopic("configured", configs={"retention.ms": 86_400_000})])
        assert retention() == ("86400000", False)
        admin.alter_configs("configured", {"retention.ms": 1_000}, validate_only=True)
        assert retention() == ("86400000", False)
        admin.alter_configs("configured", delete=["retention.ms"])
        assert retention() == ("604800000", True)
        with pytest.raises(BusError) as caught:
            admin.alter_configs("configured", {"retention.msec": 1})
        assert caught.value.code is ErrorCode.INVALID_CONFIG
        assert len(admin.describe_configs(kind="broker")) > 5


def test_new_partitions_are_found_when_they_are_named(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topics([NewTopic("grown", 1)])
        producer.send("grown", b"a").result(WAIT_S)
        admin.create_partitions({"grown": 3})
        assert consumer.end_offsets([TopicPartition("grown", 0)]) == {TopicPartition("grown", 0): 1}
        assert producer.send("grown", b"b", partition=2).result(WAIT_S).partition == 2
        admin.create_partitions({"grown": 5})
        assert consumer.end_offsets([TopicPartition("grown", 4)]) == {TopicPartition("grown", 4): 0}


def test_refusals_of_the_broker_reach_the_user_by_name(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topics([NewTopic("small", configs={"max.message.bytes": 2_000})])
        error = producer.send("small", b"x" * 5_000).exception(WAIT_S)
        assert error is not None
        assert error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
        number = producer.send_batch("small", pa.table({"value": [1, 2]})).exception(WAIT_S)
        assert number is not None
        assert number.code is ErrorCode.INVALID_RECORD
        for name, code in (("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION), ("small", ErrorCode.TOPIC_ALREADY_EXISTS)):
            with pytest.raises(BusError) as caught:
                admin.create_topics([NewTopic(name)])
            assert caught.value.code is code


def test_deleted_topic_is_gone_for_everyone(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topics([NewTopic("doomed")])
        producer.send("doomed", b"a").result(WAIT_S)
        consumer.assign([TopicPartition("doomed", 0)])
        consumer.seek(TopicPartition("doomed", 0), 0)
        assert len(consumer.poll(WAIT_S * 1000)) == 1
        admin.delete_topics(["doomed"])
        error = producer.send("doomed", b"b").exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(BusError) as caught:
            consumer.poll(WAIT_S * 1000)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_subscription_goes_on_when_its_topic_is_created_again_with_fewer_partitions(address: str) -> None:
    """The offset in the partition that is gone cannot be committed before the rebalance, which does not wait for it."""
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 600_000}
    settings |= {"metadata_max_age_ms": 100, "default_api_timeout_ms": 600_000}
    with (
        Admin(address) as admin,
        Producer(address) as producer,
        Consumer(address, group_id="shrinking", **settings) as consumer,
    ):
        admin.create_topics([NewTopic("shrinking", partitions=2)])
        for number in range(2):
            producer.send("shrinking", b"%d" % number, partition=number).result(WAIT_S)
        consumer.subscribe(["shrinking"])
        assert sorted(record.value for record in take(consumer, 2)) == [b"0", b"1"]
        admin.delete_topics(["shrinking"])
        admin.create_topics([NewTopic("shrinking")])
        for _ in range(3):
            producer.send("shrinking", b"again", partition=0).result(WAIT_S)
        # Without topic ids in commits, the first one may be taken for committed.
        assert {record.value for record in take(consumer, 2)} == {b"again"}


def test_killed_broker_costs_no_acknowledged_record_and_no_order(tmp_path: Path) -> None:
    here = TopicPartition("t", 0)
    with BrokerProcess(tmp_path / "data") as broker, Admin(broker.address) as admin:
        admin.create_topics([NewTopic("t")])
        with Producer(broker.address) as producer, Consumer(broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([here])
            futures = [producer.send("t", b"%d" % number) for number in range(300)]
            futures[50].result(WAIT_S)
            assert consumer.poll(WAIT_S * 1000)
            broker.kill()
            futures += [producer.send("t", b"%d" % number) for number in range(300, 400)]
            broker.start()
            offsets = [future.result(WAIT_S).offset for future in futures]
            consumer.seek(here, 0)
            found = read_all(consumer)
    stored = found.column("value").to_pylist()
    assert [stored[offset] for offset in offsets] == [b"%d" % number for number in range(400)]
    assert offsets == sorted(offsets)


def test_columns_of_any_encoding_are_sent_as_plain_ones(address: str) -> None:
    values = ["tea", "milk", "tea", None]
    with (
        Admin(address) as admin,
        Producer(address) as producer,
        Consumer(address, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic("encodings", 1)])
        for column in (pa.array(values).dictionary_encode(), pa.array(values).cast(pa.string_view())):
            table = pa.table({"value": column})
            producer.send_batch("encodings", table).result(WAIT_S)
            producer.send_batch("encodings", table.to_batches()[0]).result(WAIT_S)
        consumer.assign(consumer.partitions_for("encodings"))
        found = read_all(consumer).column("value").to_pylist()
    assert found == [value and value.encode() for value in values] * 4
