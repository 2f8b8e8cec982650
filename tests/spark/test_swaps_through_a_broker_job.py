"""Jobs that rewrite files, with the leader of the partition in a broker that serves meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bus import Admin, Consumer, NewTopic, Producer
from bus.model import TopicPartition
from bus.tables.topics import TopicTables
from tests.support.broker_thread import running_broker
from tests.support.job_runs import run_job

COMMITS, COUNT, KEYS = 4, 5, 3


def consumed(address: str, topic: str) -> list[tuple[int, bytes | None]]:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[tuple[int, bytes | None]] = []
        while not found or found[-1][0] < COMMITS * COUNT - 1:
            found += [(record.offset, record.value) for record in consumer.poll(timeout_ms=10_000)]
        return found


def test_the_leader_takes_what_the_jobs_prepared_and_consumers_read_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("orders"), NewTopic("profiles", configs={"cleanup.policy": "compact"})])
            for offset in range(COMMITS * COUNT):
                for topic in ("orders", "profiles"):
                    producer.send(topic, key=b"k%d" % (offset % KEYS), value=b"%d" % offset)
                if offset % COUNT == COUNT - 1:
                    producer.flush()
        before = consumed(address, "orders")
        common = ["--root", str(root), "--bootstrap", address]
        assert run_job("compact_files", *common, "orders") == 0
        assert run_job("compact_keys", *common, "--to-offset", str(COMMITS * COUNT), "profiles") == 0
        assert consumed(address, "orders") == before
        (partition,) = TopicTables(str(root)).partitions("orders")
        assert TopicTables(str(root)).log_state(partition).file_count == 1
        assert run_job("verify_log", "--root", str(root), "orders", "profiles") == 0
        assert run_job("compact_keys", *common, "orders") == 1
    with running_broker(root) as broker:  # without the records in memory that the one before had
        assert consumed(f"127.0.0.1:{broker.port}", "profiles") == before[-KEYS:]
    assert "expected a cleanup.policy with compact, found delete" in capsys.readouterr().err
