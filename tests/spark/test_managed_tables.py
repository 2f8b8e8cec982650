"""Tables that name the writer feature `busManaged`: delta-spark reads them as any other, and writes nothing to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bus.ports import Committed
from tests.support.log_root import COUNT, LogRoot
from tests.support.stores import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REFUSED = "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """A managed table with a checkpoint of version 3, a version behind it, and an orphan."""
    log = LogRoot(tmp_path / "root", is_managed=True)
    log.append(3)
    log.table.cleanup.write_checkpoint()
    log.append()
    (log.folder / f"{4 * COUNT:020}-orphan.parquet").write_bytes(b"of a commit that was interrupted")
    return log


@contextmanager
def untouched(log: LogRoot, *, may_leave_orphans: bool = False) -> Iterator[None]:
    """Nothing below the table's folder comes, goes or changes. `may_leave_orphans`: but for data files that came before
    the refusal, and that no version names."""
    before = files_of(log)
    yield
    after = files_of(log)
    assert {path: after.get(path) for path in before} == before
    came = after.keys() - before.keys()
    assert all(may_leave_orphans and re.fullmatch(r"part-.*\.parquet|\.part-.*\.parquet\.crc", name) for name in came)


def files_of(log: LogRoot) -> dict[str, bytes]:
    return {str(path.relative_to(log.folder)): path.read_bytes() for path in log.folder.rglob("*") if path.is_file()}


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


STATEMENTS = {
    "OPTIMIZE": "OPTIMIZE {t}",
    "OPTIMIZE ZORDER": "OPTIMIZE {t} ZORDER BY (producer_id)",
    "DELETE": "DELETE FROM {t} WHERE offset = 7",
    "DELETE all": "DELETE FROM {t}",
    "UPDATE": "UPDATE {t} SET key = value WHERE offset < 20",
    "MERGE": "MERGE INTO {t} AS t USING {t} AS s ON t.offset = s.offset + 1 WHEN MATCHED THEN DELETE "
    "WHEN NOT MATCHED THEN INSERT *",
    "INSERT": "INSERT INTO {t} SELECT * FROM {t}",
    "properties": "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "column": "ALTER TABLE {t} ADD COLUMN extra INT",
    "constraint": "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (offset >= 0)",
    "DROP FEATURE": "ALTER TABLE {t} DROP FEATURE busManaged",
    "RESTORE": "RESTORE TABLE {t} TO VERSION AS OF 2",
    "VACUUM": "VACUUM {t}",
    "VACUUM, forced": "VACUUM {t} FULL RETAIN 0 HOURS",
    "VACUUM LITE, forced": "VACUUM {t} LITE RETAIN 0 HOURS",
}
# Spark writes the rows of these before it asks whether it may.
WRITING_FIRST = {"OPTIMIZE", "OPTIMIZE ZORDER", "DELETE", "UPDATE", "MERGE", "INSERT"}


@pytest.fixture
def forcing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that lets VACUUM delete what is young, and does not start 10,000 tasks for it."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        if earlier is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, earlier)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_are_refused_and_change_no_file(forcing: SparkSession, log: LogRoot, statement: str) -> None:
    is_writing = statement in WRITING_FIRST
    with untouched(log, may_leave_orphans=is_writing), pytest.raises(Exception, match="DELTA_") as refused:
        forcing.sql(STATEMENTS[statement].format(t=f"delta.`{log.folder}`")).collect()
    expected = "DELTA_FEATURE_DROP" if statement == "DROP FEATURE" else REFUSED
    assert expected in str(refused.value)
    if expected == REFUSED:
        assert "busManaged" in str(refused.value)


WRITES: dict[str, Callable[[SparkSession, DataFrame, str, Path], object]] = {
    "append": lambda _, rows, url, __: rows.write.format("delta").mode("append").save(url),
    "overwrite": lambda _, rows, url, __: rows.write.format("delta").mode("overwrite").save(url),
    "stream": lambda spark, _, url, folder: (
        spark.readStream.format("delta")
        .load(url)
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "stream"))
        .trigger(availableNow=True)
        .start(url)
        .processAllAvailable()
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_of_rows_are_refused_and_change_no_file(
    spark: SparkSession, log: LogRoot, tmp_path: Path, write: str
) -> None:
    url = str(log.folder)
    with untouched(log, may_leave_orphans=True), pytest.raises(Exception, match=REFUSED):
        WRITES[write](spark, spark.read.format("delta").load(url), url, tmp_path)


def test_rows_that_were_written_before_the_refusal_are_orphans(spark: SparkSession, log: LogRoot) -> None:
    with pytest.raises(Exception, match=REFUSED):
        spark.sql(f"DELETE FROM delta.`{log.folder}` WHERE offset = 7")
    left = {path.name for path in log.folder.glob("part-*.parquet")}
    assert left
    assert log.verify().breaches == []
    log.open()
    orphans = log.table.cleanup.find_orphans()
    assert left <= orphans
    log.table.cleanup.delete_orphans(orphans)
    assert not list(log.folder.glob("part-*.parquet"))
    log.append()
    assert offsets(spark.read.format("delta").load(str(log.folder))) == list(range(5 * COUNT))


def test_batches_and_time_travel_read_every_version(spark: SparkSession, log: LogRoot) -> None:
    url = str(log.folder)
    assert offsets(spark.read.format("delta").load(url)) == list(range(4 * COUNT))
    assert offsets(spark.sql(f"SELECT offset FROM delta.`{url}` WHERE offset BETWEEN 5 AND 24")) == list(range(5, 25))
    for version in range(5):
        assert offsets(spark.read.format("delta").option("versionAsOf", version).load(url)) == list(
            range(version * COUNT)
        )
    history = spark.sql(f"DESCRIBE HISTORY delta.`{url}`").select("operation").collect()
    assert [row.operation for row in history] == [*["WRITE"] * 4, "CREATE TABLE"]


def test_a_stream_goes_on_while_the_table_is_switched(spark: SparkSession, tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(2)
    stream = spark.readStream.format("delta").load(str(log.folder)).select("offset")
    query = (
        stream.writeStream.format("memory")
        .queryName("switched")
        .option("checkpointLocation", str(tmp_path / "stream"))
        .start()
    )
    try:
        query.processAllAvailable()
        for wanted in (True, False, True):
            assert isinstance(log.table.set_managed(wanted, leader_epoch=0, now_ms=NOW_MS), Committed)
            log.append()
            query.processAllAvailable()
        log.table.cleanup.write_checkpoint()
        log.append()
        query.processAllAvailable()
    finally:
        query.stop()
    assert offsets(spark.table("switched")) == list(range(6 * COUNT))
    with pytest.raises(Exception, match=REFUSED):
        spark.sql(f"DELETE FROM delta.`{log.folder}`")
