"""Effects of the configs of a log in a running broker, without anybody asking: retention, rolling, warnings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bus import Admin, BusError, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from bus.ports import PartitionTable
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

PARTITION = TopicPartition("t", 0)
HASTY = BrokerConfig(log_retention_check_interval_ms=20)


def wait_for(is_so: Callable[[], bool]) -> None:
    while not is_so():  # the test's timeout ends it
        time.sleep(0.005)


def table_of(broker: Broker) -> PartitionTable:
    partition = broker.cluster.host.find(PARTITION)
    return partition._table  # type: ignore[union-attr, no-any-return]


def earliest(admin: Admin) -> int:
    return admin.list_offsets({PARTITION: -2})[PARTITION].offset


def test_altered_retention_lets_old_records_go_and_offsets_go_on_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root", config=HASTY) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("t", partitions=1)])
            for _ in range(3):
                producer.send("t", b"v").result(50)
            assert earliest(admin) == 0
            admin.alter_configs("t", {"retention.ms": "1"})
            wait_for(lambda: earliest(admin) == 3)
            admin.alter_configs("t", {"retention.ms": "-1"})
            assert producer.send("t", b"v").result(50).offset == 3
    with running_broker(tmp_path / "root", config=HASTY) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        assert earliest(admin) == 3
        assert admin.list_offsets({PARTITION: -1})[PARTITION].offset == 4


def test_records_from_the_future_stay_no_longer_than_others_and_a_policy_of_nothing_keeps_all(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root", config=HASTY) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            kept = {"retention.ms": "1", "cleanup.policy": "", "message.timestamp.after.max.ms": "9000000000000"}
            admin.create_topics([NewTopic("t", partitions=1, configs=kept)])
            producer.send("t", b"v", timestamp_ms=int(time.time() * 1000) + 8_000_000_000_000).result(50)
            version = table_of(broker).state.version
            admin.alter_configs("t", {"cleanup.policy": "delete"})
            wait_for(lambda: earliest(admin) == 1)
            assert table_of(broker).state.version == version + 1


def test_old_small_files_are_rolled_though_nobody_writes(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root", config=HASTY) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("t", partitions=1)])
            for _ in range(4):
                producer.send("t", b"v").result(50)
            assert table_of(broker).state.file_count == 4
            admin.alter_configs("t", {"segment.ms": "1000"})
            wait_for(lambda: table_of(broker).state.file_count == 1)
            assert admin.list_offsets({PARTITION: -1})[PARTITION].offset == 4


def test_a_topic_that_becomes_compacted_takes_no_record_without_a_key_from_then_on(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("t", partitions=1)])
            producer.send("t", b"v").result(50)
            admin.alter_configs("t", append={"cleanup.policy": "compact"})
            with pytest.raises(BusError, match="expected a key") as caught:
                producer.send("t", b"v").result(50)
            assert caught.value.name == "INVALID_RECORD"
            assert producer.send("t", b"v", key=b"k").result(50).offset == 1


def test_segments_above_what_is_retained_are_allowed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_broker(tmp_path / "root") as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        with caplog.at_level(logging.WARNING):
            admin.create_topics([NewTopic("t", partitions=1, configs={"retention.bytes": "2000000"})])
        assert sum("above retention.bytes" in record.getMessage() for record in caplog.records) == 1
        caplog.clear()
        admin.alter_configs("t", {"segment.bytes": "2000000"})
        assert not any("above retention.bytes" in record.getMessage() for record in caplog.records)
        admin.alter_configs("t", {"segment.bytes": "2000001"})
        assert sum("above retention.bytes" in record.getMessage() for record in caplog.records) == 1


def test_a_lag_that_contradicts_the_broker_default_is_refused(tmp_path: Path) -> None:
    config = BrokerConfig(log_cleaner_max_compaction_lag_ms=1_000)
    with running_broker(tmp_path / "root", config=config) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        with pytest.raises(BusError, match=r"min\.compaction\.lag\.ms of at most") as caught:
            admin.create_topics([NewTopic("t", partitions=1, configs={"min.compaction.lag.ms": "1001"})])
        assert caught.value.name == "INVALID_CONFIG"
        admin.create_topics([NewTopic("t", partitions=1, configs={"min.compaction.lag.ms": "1000"})])
