"""delta-spark beside transactions: it reads what was applied, knows the proofs, and passes over what is staged."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.log_root import LogRoot
from tests.support.transactions import KEY, apply_transaction, staged_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_AGO_S = time.time() - 30 * 86_400


def staged_files(log: LogRoot) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (log.folder / "_staged").rglob("*") if path.is_file()}


def test_reads_vacuum_and_optimize_leave_what_is_staged_alone(spark: SparkSession, tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(3)
    apply_transaction(log.table, "orders \u00e9", 0, b"30", b"31")
    log.table.transactions.staged.stage(KEY, staged_batch(0, b"open"))
    for place in (log.folder / "_staged", log.folder / "_staged" / "7"):
        (place / "part-0.parquet").write_bytes(b"no data file")
    for path in (log.folder / "_staged").rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    before = staged_files(log)
    expected = sorted(b"%d" % offset for offset in range(32))

    def values() -> list[bytes]:
        return sorted(bytes(row.value) for row in spark.read.format("delta").load(str(log.folder)).collect())

    assert values() == expected
    stream = spark.readStream.format("delta").load(str(log.folder))
    sink = tmp_path / "sink"
    query = (
        stream.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True)
    )
    query.start(str(sink)).awaitTermination()
    assert spark.read.format("delta").load(str(sink)).count() == 32

    # VACUUM lists folders with 10,000 tasks else.
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"OPTIMIZE delta.`{log.folder}`")
        spark.sql(f"VACUUM delta.`{log.folder}` RETAIN 0 HOURS")
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert values() == expected
    assert staged_files(log) == before
    assert len(list(log.folder.glob("*.parquet"))) == 1
    table = log.open()
    assert table.transactions.version_of("orders \u00e9") == 1
    assert [batch.columns.column("value").to_pylist() for batch in table.transactions.staged.read(KEY, 0)] == [
        [b"open"]
    ]
    # Nothing but what was asked for: the files of older versions.
    assert {breach.promise for breach in log.verify().breaches} == {"kept versions can be read"}
