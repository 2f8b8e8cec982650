"""Hours of a log's life, its clock moved by hand: a native stream of delta-spark and a consumer read along through
appends, rolling, retention, key compaction and cleaning, and each sees every record once; afterwards every version that
is kept is read by delta-spark and by deltalake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_reader
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_root
from tests.support.broker_thread import running_broker
from tests.support.fake_table import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

HOUR_MS, STEP_MS = 3_600_000, 1_200_000
STEPS, COMMITS, PER_COMMIT, KEYS = 7, 8, 4, 9
LIFE = {
    "segment.bytes": 1 << 20,
    "segment.ms": STEP_MS - 1,
    "delta.log.retention.ms": STEP_MS * 3 // 2,
    "delta.log.versions.max": 16,
    "file.delete.delay.ms": 60_000,
    "commit.interval.ms": 0,
    "message.timestamp.type": "LogAppendTime",
}
TOPICS = {
    "orders": {"cleanup.policy": "delete", "retention.ms": HOUR_MS // 2},
    "latest": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
}
ACTIONS = {"orders": ("roll", "clean"), "latest": ("compact", "roll", "clean")}


class Life:
    """One topic, those who read along, and what they have seen."""

    def __init__(self, spark: SparkSession, folder: Path, address: str, topic: str) -> None:
        self.topic = topic
        self.table = str(folder / "root" / "topics" / topic / "0")
        self.sent = 0
        self.seen: list[int] = []
        self._spark = spark
        self._producer = Producer(address, linger_ms=0)
        self._consumer = Consumer(address, auto_offset_reset="none")
        self._consumer.assign([TopicPartition(topic, 0)])
        self._consumer.seek(TopicPartition(topic, 0), 0)
        self._query = self._start_stream(folder)
        self.stream()  # its first version is the first of the table, before anything was replaced

    def _start_stream(self, folder: Path) -> StreamingQuery:
        stream = self._spark.readStream.format("delta").option("ignoreDeletes", "true").load(self.table)
        writer = stream.select("offset").writeStream.format("memory").queryName(f"life_of_{self.topic}")
        return writer.option("checkpointLocation", str(folder / "checkpoints" / self.topic)).start()

    def append(self) -> None:
        for _ in range(COMMITS):
            offsets = range(self.sent, self.sent + PER_COMMIT)
            rows = {"key": [b"k%d" % (offset % KEYS) for offset in offsets], "value": [b"v%d" % at for at in offsets]}
            self._producer.send_batch(self.topic, pa.table(rows), partition=0).result(30)
            self.sent += PER_COMMIT

    def consume(self) -> None:
        position = self.seen[-1] + 1 if self.seen else 0
        while position < self.sent:
            self.seen += [record.offset for record in self._consumer.poll(timeout_ms=1_000)]
            position = self._consumer.position(TopicPartition(self.topic, 0))

    def stream(self) -> None:
        self._query.processAllAvailable()

    def streamed(self) -> list[int]:
        return sorted(row.offset for row in self._spark.table(f"life_of_{self.topic}").collect())

    def close(self) -> None:
        self._query.stop()
        self._consumer.close()
        self._producer.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def address(tmp_path: Path, clock: ManualClock) -> Iterator[str]:
    # The broker looks at everything itself, too, whenever it likes.
    config = BrokerConfig(log_retention_check_interval_ms=50)
    with running_broker(tmp_path / "root", config=config, clock=clock) as broker:
        yield f"127.0.0.1:{broker.port}"


def live_on(life: Life, admin: Admin, *, is_stream_ahead: bool) -> None:
    """The stream reads what is new before it is rolled or compacted, or only behind that."""
    life.append()
    life.consume()
    if is_stream_ahead:
        life.stream()
    for action in ACTIONS[life.topic]:
        list(admin.maintain_log(life.topic, action))
    if not is_stream_ahead:
        life.stream()


def kept_versions(table: str) -> list[int]:
    log = Path(table) / "_delta_log"
    versions = sorted(int(path.stem) for path in log.glob("0*.json"))
    first = 0 if versions[0] == 0 else min(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    return [version for version in versions if version >= first]


def check_that_much_has_happened(root: Path, life: Life) -> None:
    reader = open_reader(str(root)).open_partition(TopicPartition(life.topic, 0))
    assert (reader.state.log_start > 0) == (life.topic == "orders"), "retention let go of something"
    assert any(file.level for file in reader.view.live_files), "something was rolled or compacted"
    assert (reader.view.compacted_to > 0) == (life.topic == "latest")
    assert kept_versions(life.table)[0] > STEPS * COMMITS // 3, "versions were dropped"
    assert len(list(Path(life.table).glob("*.parquet"))) < STEPS * COMMITS, "data files were deleted"


def check_every_kept_version(spark: SparkSession, life: Life) -> None:
    kept = kept_versions(life.table)
    assert len(kept) > 1
    for version in kept:
        other = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(life.table, version=version))
        expected = pa.table(other.execute("select offset from t order by offset").read_all())["offset"].to_pylist()
        rows = spark.read.format("delta").option("versionAsOf", version).load(life.table).select("offset").collect()
        assert sorted(row.offset for row in rows) == expected == sorted(set(expected))
        # What is kept of a log that is not compacted has no holes, at any time.
        assert life.topic == "latest" or expected == list(range(expected[0], expected[-1] + 1))


@pytest.mark.timeout(600)
def test_a_native_stream_and_a_consumer_see_every_record_once_through_hours_of_maintenance(
    spark: SparkSession, tmp_path: Path, address: str, clock: ManualClock
) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, 1, {**LIFE, **configs}) for topic, configs in TOPICS.items()])
        lives = [Life(spark, tmp_path, address, topic) for topic in TOPICS]
        try:
            for step in range(STEPS):
                for life in lives:
                    live_on(life, admin, is_stream_ahead=step % 2 == 1)
                clock.advance(STEP_MS)
            for life in lives:
                assert life.seen == list(range(life.sent))
                assert life.streamed() == list(range(life.sent))
        finally:
            for life in lives:
                life.close()
        for life in lives:
            check_that_much_has_happened(tmp_path / "root", life)
            check_every_kept_version(spark, life)
    breaches = [breach for report in verify_root(LocalStore(str(tmp_path / "root"))) for breach in report.breaches]
    assert breaches == []
