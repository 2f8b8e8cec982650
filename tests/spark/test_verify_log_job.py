"""Verification by Spark: each rule on a few rows, and whole tables, healthy and broken, beside `bus log verify`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bus.jobs.verify_log import main, parse_arguments, verify_topic
from bus.model import ProducerStamp, TopicPartition
from bus.records.log_schema import LOG_SCHEMA
from bus.spark import log_promises as promises
from bus.spark.log_rows import BREACH_SCHEMA, LOGS_SCHEMA, ROW_COLUMNS, live_files
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from tests.support.job_root import NOW_MS, JobRoot

ROWS = f"topic string, partition int, file string, position bigint, {ROW_COLUMNS}"


def row(
    offset: int,
    *,
    file: str = "f",
    position: int | None = None,
    epoch: int = 0,
    producer: tuple[int | None, int | None, int | None] = (None, None, None),
    second: int = 0,
    kind: int = 0,
) -> tuple[Any, ...]:
    time = datetime(2026, 1, 1, 0, 0, second, tzinfo=timezone.utc)
    return ("t", 0, file, offset if position is None else position, offset, time, kind, *producer, epoch)


def told(
    base: int,
    last: int,
    *,
    file: str = "f",
    is_ours: bool = True,
    may_have_holes: bool = False,
    losses: int = 0,
    spans: list[list[int]] | None = None,
) -> dict[str, Any]:
    """What a log says of a file, and nothing of its statistics."""
    return {
        "file": file,
        "is_ours": is_ours,
        "base_offset": base,
        "last_offset": last,
        "may_have_holes": may_have_holes,
        "losses": losses,
        "records": last - base + 1,
        "spans": spans,
    }


class Bench:
    """One partition's log, as frames."""

    def __init__(self, spark: SparkSession, files: list[dict[str, Any]], rows: list[tuple[Any, ...]]) -> None:
        names = spark.createDataFrame([], LOGS_SCHEMA).schema["files"].dataType.elementType.names  # type: ignore[attr-defined]
        listed = [tuple(file.get(name) for name in names) for file in files]
        self.spark = spark
        self.logs = spark.createDataFrame([("t", 0, 1, 0, 0, listed, [], [])], LOGS_SCHEMA)
        self.files = live_files(self.logs)
        self.rows = spark.createDataFrame(rows, ROWS)

    @property
    def summaries(self) -> DataFrame:
        return promises.summarize_files(self.rows, self.files)

    @property
    def producers(self) -> DataFrame:
        return promises.summarize_producers(self.rows, self.files)

    def expect(self, found: DataFrame, *breaches: tuple[str, str, str, str]) -> None:
        expected = self.spark.createDataFrame([("t", 0, *breach) for breach in breaches], BREACH_SCHEMA)
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


def test_rows_of_a_healthy_file_break_no_rule(spark: SparkSession) -> None:
    bench = Bench(spark, [told(3, 5)], [row(3), row(4, epoch=1), row(5, epoch=1, kind=1)])
    bench.expect(promises.row_breaches(bench.summaries))


def test_offsets_are_dense_in_our_files_and_in_the_order_of_the_rows(spark: SparkSession) -> None:
    rows = [row(0), row(1), row(3), row(9, file="g", position=0), row(8, file="g", position=1)]
    rows += [row(20, file="h", position=0), row(20, file="h", position=1)]
    bench = Bench(spark, [told(0, 3), told(8, 9, file="g"), told(20, 21, file="h")], rows)
    bench.expect(
        promises.row_breaches(bench.summaries),
        ("offsets are dense", "f", "offset 2 after 1", "3"),
        ("offsets are dense", "g", "offset 10 after 9", "8"),
        ("offsets are dense", "h", "offset 21 after 20", "20"),
    )


def test_a_compacted_file_may_have_holes_and_a_foreign_one_any_order(spark: SparkSession) -> None:
    rows = [row(0), row(7), row(7, position=8), row(9, file="g", position=0), row(8, file="g", position=1)]
    bench = Bench(spark, [told(0, 7, may_have_holes=True), told(8, 9, file="g", is_ours=False)], rows)
    bench.expect(promises.row_breaches(bench.summaries), ("offsets grow", "f", "an offset above 7 after it", "7"))


def test_leader_epochs_never_fall_within_a_file_or_between_files(spark: SparkSession) -> None:
    rows = [row(0, epoch=2), row(1, epoch=1), row(2, file="g", epoch=3), row(3, file="h", epoch=2)]
    bench = Bench(spark, [told(0, 1), told(2, 2, file="g"), told(3, 3, file="h")], rows)
    bench.expect(
        promises.row_breaches(bench.summaries),
        ("leader epochs never go back", "f", "a leader epoch of at least 2", "1 at offset 1"),
    )
    bench.expect(
        promises.epoch_breaches(bench.summaries),
        ("leader epochs never go back", "h", "a leader epoch of at least 3", "2 at its begin"),
    )


def test_nulls_types_and_half_stamps_are_told(spark: SparkSession) -> None:
    no_time = (*row(1)[:5], None, *row(1)[6:])
    rows = [row(0, producer=(7, 0, None)), no_time, row(2, kind=5)]
    bench = Bench(spark, [told(0, 2)], rows)
    bench.expect(
        promises.row_breaches(bench.summaries),
        ("no offset, timestamp, type or epoch is null", "f", "a value in every timestamp", "1 nulls"),
        ("timestamp types are known", "f", "0 or 1", "5"),
        (
            "producers have id, epoch and sequence",
            "f",
            "nulls in the same rows of all three columns",
            "1 row that has some of them",
        ),
    )


def test_statistics_are_held_against_the_rows(spark: SparkSession) -> None:
    second = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()) * 1000
    true = {
        **told(0, 1),
        **{f"{name}_nulls": 0 for name in ("offset", "timestamp")},
        **{f"{name}_nulls": 2 for name in ("producer_id", "sequence")},
        "offset_min": 0,
        "offset_max": 1,
        "timestamp_min": second,
        "timestamp_max": second + 4000,
        "tag": [0, 2, 2, second, second + 4000, 0],
    }
    wrong = {**true, "file": "g", "records": 3, "offset_max": 2, "timestamp_min": second + 1, "sequence_nulls": 0}
    wrong["tag"] = [0, 3, 2, second, second + 4000, 0]
    rows = [row(0, file=file) for file in "fg"] + [row(1, file=file, second=4) for file in "fg"]
    bench = Bench(spark, [true, wrong, told(9, 9, file="empty")], rows)
    promise = "statistics are true"
    tag = f"{second}, {second + 4000}, 0]"
    bench.expect(
        promises.statistics_breaches(bench.files, bench.summaries),
        (promise, "g", "numRecords 2", "3"),
        (promise, "g", "maxValues.offset 1", "2"),
        (promise, "g", "minValues.timestamp in ms " + str(second), str(second + 1)),
        (promise, "g", "nullCount.sequence 2", "0"),
        (promise, "g", f"the tag [0, 2, 2, {tag}", f"[0, 3, 2, {tag}"),
        (promise, "empty", "1 record", "none"),
    )


def producer_rows(*places: tuple[str, int, int, int], producer_id: int = 7) -> list[tuple[Any, ...]]:
    """Records of one producer: file, offset, epoch, sequence."""
    return [row(offset, file=file, producer=(producer_id, epoch, sequence)) for file, offset, epoch, sequence in places]


PROMISE = "producers' sequences follow each other"


def test_sequences_follow_each_other_within_files_and_between_them(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 0), ("f", 1, 0, 1), ("g", 2, 0, 2), ("g", 3, 0, 2), ("h", 4, 0, 9))
    rows += producer_rows(("f", 9, 0, 2**31 - 1), ("g", 10, 0, 0), ("h", 11, 1, 0), producer_id=8)
    bench = Bench(spark, [told(0, 1), told(2, 3, file="g"), told(4, 4, file="h")], rows)
    bench.expect(
        promises.producer_breaches(bench.producers),
        (PROMISE, "g", "epoch 0 and sequence 3 of producer 7, or a higher epoch", "epoch 0 and sequence 2 at offset 3"),
        (PROMISE, "h", "epoch 0 and sequence 3 of producer 7, or a higher epoch", "epoch 0 and sequence 9 at offset 4"),
    )


def test_a_higher_epoch_begins_with_0_or_goes_on_and_a_lower_one_never_comes(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 4), ("f", 1, 1, 5), ("f", 2, 2, 0), ("g", 3, 3, 7), ("h", 4, 2, 8))
    bench = Bench(spark, [told(0, 2), told(3, 3, file="g"), told(4, 4, file="h")], rows)
    bench.expect(
        promises.producer_breaches(bench.producers),
        (PROMISE, "g", "epoch 2 and sequence 1 of producer 7, or a higher epoch", "epoch 3 and sequence 7 at offset 3"),
        (PROMISE, "h", "epoch 3 and sequence 8 of producer 7, or a higher epoch", "epoch 2 and sequence 8 at offset 4"),
    )


def test_behind_holes_and_losses_a_sequence_only_has_to_be_later(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 4), ("f", 5, 0, 9), ("g", 10, 0, 20), ("h", 20, 0, 40), ("i", 30, 0, 39))
    files = [
        told(0, 9, may_have_holes=True),
        told(10, 10, file="g"),
        told(20, 20, file="h", losses=1),
        told(30, 30, file="i", losses=2),
    ]
    bench = Bench(spark, files, rows)
    bench.expect(
        promises.producer_breaches(bench.producers),
        (
            PROMISE,
            "i",
            "epoch 0 and sequence 41 of producer 7, or a higher epoch",
            "epoch 0 and sequence 39 at offset 30",
        ),
    )


def test_spans_leave_no_record_out(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 0), ("f", 1, 0, 1), ("g", 2, 0, 2), ("h", 3, 0, 3))
    files = [told(0, 1, spans=[[7, 7, 0, 0, 0, 0], [1, 9, 0, 2, 1, 1]]), told(2, 2, file="g", spans=[])]
    bench = Bench(spark, [*files, told(3, 3, file="h")], rows)
    bench.expect(
        promises.producer_breaches(bench.producers),
        ("statistics are true", "g", "a span for producer 7, epoch 0, sequence 2", "none in the file's tag"),
    )


def test_the_log_tells_where_producers_ended(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 1, 4))
    rows += producer_rows(("f", 1, 0, 0), producer_id=8) + producer_rows(("f", 2, 0, 0), producer_id=9)
    bench = Bench(spark, [told(0, 2)], rows)
    txns = [(7, 1, 4), (8, 0, 5), (10, 0, 0)]
    promise = "the log tells where producers ended"
    expected = [
        (promise, "f", "txn bus/8 at epoch 0 and sequence 0", "epoch 0 and sequence 5"),
        (promise, "f", "txn bus/9 at epoch 0 and sequence 0", "none"),
        (promise, "_delta_log", "a record of bus/10, which has a txn", "none"),
    ]
    for high_watermark, count in [(3, 3), (4, 2)]:  # where records were retired, they may have been those of 10
        logs = spark.createDataFrame([("t", 0, 1, high_watermark, 0, [], txns, [])], LOGS_SCHEMA)
        bench.expect(promises.progress_breaches(logs, bench.producers, bench.files), *expected[:count])


def test_the_log_need_not_name_producers_that_were_forgotten(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 0), producer_id=8) + producer_rows(("f", 1, 0, 0), producer_id=9)
    bench = Bench(spark, [told(0, 1)], rows)
    logs = spark.createDataFrame([("t", 0, 1, 2, 0, [], [(-1, 0, 8)], [])], LOGS_SCHEMA)
    expected = ("the log tells where producers ended", "f", "txn bus/9 at epoch 0 and sequence 0", "none")
    bench.expect(promises.progress_breaches(logs, bench.producers, bench.files), expected)


def test_a_txn_may_be_ahead_of_records_that_compaction_or_a_loss_took(spark: SparkSession) -> None:
    rows = producer_rows(("f", 0, 0, 4)) + producer_rows(("g", 5, 0, 4), producer_id=8)
    bench = Bench(spark, [told(0, 1, may_have_holes=True), told(5, 5, file="g", losses=0)], rows)
    for losses, told_of_8 in [(0, 4), (1, 9)]:
        logs = spark.createDataFrame([("t", 0, 1, 9, losses, [], [(7, 0, 9), (8, 0, told_of_8)], [])], LOGS_SCHEMA)
        bench.expect(promises.progress_breaches(logs, bench.producers, bench.files))


# ------------------------------------------------------------------ beside bus log verify

Change = Callable[[pa.Table], pa.Table]


def column_changed(name: str, change: Callable[[Any], Any]) -> Change:
    """Some values of a column, as an object array, are others."""

    def changed(rows: pa.Table) -> pa.Table:
        values = np.array(rows.column(name).to_pylist(), object)
        change(values)
        field = LOG_SCHEMA.field(name).with_nullable(True)
        return rows.set_column(rows.schema.get_field_index(name), field, pa.array(values.tolist(), field.type))

    return changed


def set_value(index: int, value: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        values[index] = value

    return change


class Breaker:
    """Damages one partition; data files are rewritten with their size told truly."""

    def __init__(self, root: JobRoot, partition: TopicPartition) -> None:
        self.folder = root.path(partition)
        self.files = [file.path for file in root.tables[partition].rewrites.files]

    def rows(self, index: int, change: Change) -> None:
        path = self.folder / self.files[index]
        rows = change(pq.ParquetFile(path).read())
        pq.write_table(rows, path, store_schema=False)
        self.entry(index, lambda add: add.update(size=path.stat().st_size))
        self.entry(index, lambda add: add["tags"].pop("bus.crc32"))  # the rows are wrong, the bytes are as written

    def entry(self, index: int, change: Callable[[dict[str, Any]], object]) -> None:
        self.actions(index + 1, lambda action: change(action["add"]) if "add" in action else None)

    def txn(self, version: int, app_id: str, done: int) -> None:
        self.actions(
            version, lambda action: action["txn"].update(version=done) if app_id in str(action.get("txn")) else None
        )

    def actions(self, version: int, change: Callable[[dict[str, Any]], object]) -> None:
        path = self.folder / "_delta_log" / f"{version:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            change(action)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def stats_changed(add: dict[str, Any]) -> None:
    stats = json.loads(add["stats"])
    stats["maxValues"]["sequence"] += 1
    add["stats"] = json.dumps(stats)


def bit_flipped(breaker: Breaker) -> None:
    path = breaker.folder / breaker.files[1]
    data = bytearray(path.read_bytes())
    data[data.index(b"value-5")] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Breaker], object]] = {
    "none": lambda _: None,
    "a hole": lambda one: one.rows(1, column_changed("offset", set_value(3, 99))),
    "an offset twice": lambda one: one.rows(1, column_changed("offset", set_value(2, 5))),
    "no timestamp": lambda one: one.rows(1, column_changed("timestamp", set_value(0, None))),
    "an epoch that falls": lambda one: one.rows(1, column_changed("leader_epoch", set_value(1, 7))),
    "an epoch below the file before": lambda one: one.rows(0, column_changed("leader_epoch", lambda v: v.fill(1))),
    "an unknown type": lambda one: one.rows(2, column_changed("timestamp_type", set_value(0, 3))),
    "a sequence twice": lambda one: one.rows(1, column_changed("sequence", set_value(1, 4))),
    "half a stamp": lambda one: one.rows(1, column_changed("producer_epoch", set_value(1, None))),
    "a row less": lambda one: one.rows(2, lambda rows: rows.slice(0, 3)),
    "no column": lambda one: one.rows(2, lambda rows: rows.drop_columns(["headers"])),
    "a wrong statistic": lambda one: one.entry(0, stats_changed),
    "a wrong tag": lambda one: one.entry(
        0, lambda add: add["tags"].update({"bus.file": add["tags"]["bus.file"].replace("0 4 4", "0 4 3", 1)})
    ),
    "a wrong end of a producer": lambda one: one.txn(3, "bus/7", 12),
    "a wrong high watermark": lambda one: one.txn(3, "bus/high_watermark", 13),
    "no file": lambda one: (one.folder / one.files[1]).unlink(),
    "a short file": lambda one: (one.folder / one.files[1]).write_bytes(b"PAR1"),
    "a flipped bit": bit_flipped,
}


# What only one of the two tells: after its first finding in a file, `bus log verify` looks no further into it.
MORE_OR_LESS: dict[str, set[str]] = {
    "no timestamp": {"statistics are true", "producers' sequences follow each other"},
    "no column": {"statistics are true"},
    "a short file": {"live files are readable"},
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> JobRoot:
    """A partition for each damage, twelve records of one producer in three files."""
    root = JobRoot(tmp_path_factory.mktemp("broken") / "root", partitions=len(DAMAGES))
    for partition, damage in zip(root.tables, DAMAGES.values(), strict=True):
        for commit in range(3):
            rows = [(None, f"value-{4 * commit + n}".encode()) for n in range(4)]
            root.append(rows, partition=partition, now_ms=NOW_MS + commit, producer=ProducerStamp(7, 0, 4 * commit))
        damage(Breaker(root, partition))
    return root


def test_each_damage_is_told_as_bus_log_verify_tells_it(spark: SparkSession, broken: JobRoot) -> None:
    named = [(partition, broken.topic_id) for partition in broken.tables]
    by_job: dict[int, set[tuple[str, str]]] = {}
    for breach in verify_topic(spark, str(broken.folder), named):
        by_job.setdefault(breach.partition, set()).add((breach.promise, breach.file))
    store = LocalStore(str(broken.folder))
    differences = {}
    for (partition, topic_id), damage in zip(named, DAMAGES, strict=True):
        report = verify_partition(store, partition, topic_id=topic_id)
        expected = {(breach.promise, breach.file) for breach in report.breaches}
        assert bool(expected) == (damage != "none"), damage
        found = by_job.get(partition.partition, set())
        only_one = {promise for promise, _ in found ^ expected}
        if only_one:
            differences[damage] = only_one
    assert differences == MORE_OR_LESS


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
    assert main(["--root", str(root.folder), "--all"]) == 0
    assert root.breaches() == []


def test_breaches_are_a_table_and_the_exit_code(
    spark: SparkSession, broken: JobRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(broken.folder), "--no-rows", "--csv", "orders/0", "orders/15"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "topic,partition,promise,file,expected,found"
    assert [line.split(",")[:3] for line in lines[1:]] == [["orders", "15", "live files are there"]]
    assert "orders (1 of 1): 1 breach\n" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--all", "orders"]])
def test_topics_are_named_or_all_are_meant(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert "expected topics or --all" in capsys.readouterr().err
