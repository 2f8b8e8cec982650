"""Verification by Spark: what the verifier of the storage finds in each partition, healthy and broken, as one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bus.jobs.verify_log import verify_partitions
from bus.model import ProducerStamp
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from tests.support.job_root import NOW_MS, JobRoot
from tests.support.job_runs import run_job


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"value-5")] ^= 1
    file.write_bytes(data)


# Each of the second file of its partition.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "none": lambda _: None,
    "a flipped bit": flip_a_bit,
    "no Parquet file": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "no file": lambda file: file.unlink(),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> JobRoot:
    """A partition for each damage, twelve records of one producer in three files."""
    root = JobRoot(tmp_path_factory.mktemp("broken") / "root", partitions=len(DAMAGES))
    for partition, damage in zip(root.tables, DAMAGES.values(), strict=True):
        for commit in range(3):
            rows = [(None, f"value-{4 * commit + n}".encode()) for n in range(4)]
            root.append(rows, partition=partition, now_ms=NOW_MS + commit, producer=ProducerStamp(7, 0, 4 * commit))
        damage(root.path(partition) / root.tables[partition].rewrites.files[1].path)
    return root


def test_each_partition_is_judged_as_bus_log_verify_judges_it(spark: SparkSession, broken: JobRoot) -> None:
    named = [(partition, broken.topic_id) for partition in broken.tables]
    found = verify_partitions(spark, str(broken.folder), named)
    store = LocalStore(str(broken.folder))
    for (partition, topic_id), damage in zip(named, DAMAGES, strict=True):
        report = verify_partition(store, partition, topic_id=topic_id)
        expected = {(one.promise, one.file, one.expected, one.found) for one in report.breaches}
        assert bool(expected) == (damage != "none"), damage
        assert {one[2:] for one in found if one[:2] == (partition.topic, partition.partition)} == expected, damage


def test_rows_of_other_engines_and_of_compaction_keep_the_promises(spark: SparkSession, tmp_path: Path) -> None:
    root = JobRoot(tmp_path / "root", partitions=3, configs={"cleanup.policy": "compact"})
    for partition in root.tables:
        for commit in range(4):
            rows = [(f"k{n % 2}".encode(), b"v") for n in range(3)]
            root.append(rows, partition=partition, producer=ProducerStamp(1, 0, 3 * commit))
    _, optimized, compacted = root.tables
    spark.sql(f"OPTIMIZE delta.`{root.path(optimized)}`")
    table = root.tables[compacted]
    prepared = table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=0)
    assert prepared is not None
    table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS)
    root.append([(b"k0", b"new")], partition=compacted, producer=ProducerStamp(1, 0, 12))
    assert run_job("verify_log", "--root", str(root.folder), "--all") == 0
    assert root.breaches() == []


def test_breaches_are_a_table_and_the_exit_code(
    spark: SparkSession, broken: JobRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job("verify_log", "--root", str(broken.folder), "--no-rows", "--csv", "orders/0", "orders/3") == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "topic,partition,promise,file,expected,found"
    assert [line.split(",")[:3] for line in lines[1:]] == [["orders", "3", "live files are there"]]
    assert "orders (1 of 1): 1 breach\n" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--all", "orders"]])
def test_topics_are_named_or_all_are_meant(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_job("verify_log", *arguments) == 2
    assert "expected topics or --all" in capsys.readouterr().err
