"""The same statement by both engines, as users type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, ViewCreated, encode_record
from bus.model import LogBatch, TimestampType, TopicPartition
from bus.ports import Committed
from bus.storage_delta.root import open_storage
from tests.support.stores import NOW_MS, led, log_batch

pytestmark = pytest.mark.spark

TOPIC_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spark") / "root"
    storage = open_storage(str(root))
    records = [
        BrokerRegistered(0, "127.0.0.1", 9094),
        TopicCreated("my-topic", TOPIC_ID, 2, 0),
        ViewCreated("typed", "my-topic", "n INT", "partition,offset,_corrupt"),
    ]
    led(storage.open_metadata()).append([encode_record(record) for record in records], leader_epoch=0, now_ms=NOW_MS)
    for number in range(2):
        table = led(storage.create_partition(TopicPartition("my-topic", number), topic_id=TOPIC_ID))
        for base_offset in (0, 3):
            batch: LogBatch = log_batch(base_offset, [b'{"n":1}', None, "\u00fc".encode()], keys=[b"k", None, b"k2"])
            assert batch.timestamp_type is TimestampType.CREATE_TIME
            assert isinstance(table.append([batch], leader_epoch=0, now_ms=NOW_MS), Committed)
    storage.close()
    return root


def answers(root: Path, engine: str, statement: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bus", "sql", statement, "--root", str(root), "--engine", engine, *options],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.timeout(240)
def test_both_engines_give_the_same_rows_at_a_point_in_time(root: Path) -> None:
    statement = (
        "SELECT topic, partition, offset, timestamp_type, key, value, value_bytes, (SELECT max(n) FROM typed) AS n "
        'FROM "my-topic" WHERE partition = 1 OR offset < 2 ORDER BY partition, offset'
    )
    bounds = ("--at-version", "my-topic:0=1", "--at-offset", "my-topic:1=5", "--format", "json")
    found = [answers(root, engine, statement, *bounds) for engine in ("duckdb", "spark")]
    assert [result.returncode for result in found] == [0, 0], found[1].stderr
    embedded, distributed = (json.loads(result.stdout) for result in found)
    assert embedded == distributed
    assert [(row["partition"], row["offset"]) for row in embedded] == [(0, 0), (0, 1), *((1, n) for n in range(5))]
    assert embedded[0]["value"] == embedded[0]["value_bytes"] == '{"n":1}'
    assert {row["n"] for row in embedded} == {1}


@pytest.mark.timeout(240)
def test_unknown_topic_is_told_in_sparks_words_with_those_there_are(root: Path) -> None:
    failed = answers(root, "spark", "SELECT * FROM nobody")
    assert failed.returncode == 1
    assert "error: [TABLE_OR_VIEW_NOT_FOUND]" in failed.stderr
    assert "topics: __cluster_metadata, my-topic" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "org.apache.spark.sql.errors" not in failed.stderr


@pytest.mark.timeout(240)
def test_views_of_the_root_answer_in_spark_by_either_name(root: Path) -> None:
    statement = (
        'SELECT p.topic, p.partition, p."log_end_offset", count(l.lag) AS lags FROM partitions p '
        "LEFT JOIN bus.lag l ON l.topic = p.topic WHERE p.topic = 'my-topic' GROUP BY ALL ORDER BY p.partition"
    )
    answered = answers(root, "spark", statement, "--format", "csv")
    assert answered.stdout.splitlines()[1:] == ["my-topic,0,6,0", "my-topic,1,6,0"], answered.stderr


@pytest.mark.timeout(240)
def test_a_statement_that_writes_is_refused_by_spark_too(root: Path) -> None:
    table = root / "topics" / "my-topic" / "0"
    before = sorted(path for path in root.rglob("*"))
    refused = answers(root, "spark", f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1].startswith("error: expected one statement that reads: SELECT, EXPLAIN")
    assert sorted(path for path in root.rglob("*")) == before
