"""Rolling by Spark: which files become one, what is written, and how the swap ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from bus import Admin
from bus.errors import BusError, ErrorCode, Refused
from bus.jobs.compact_files import Settings, choose_runs, compact_partition
from bus.model import ProducerStamp, TopicPartition
from bus.ports import Committed, SwapKind
from bus.records.log_schema import LOG_SCHEMA, nullable_type
from bus.settings.topic import TopicConfig
from bus.spark.file_swaps import Leader, staging
from bus.spark.log_files import FILES_SCHEMA, PartitionFiles, load_files
from bus.tables.topics import TopicTables
from tests.support.job_root import NOW_MS, JobRoot
from tests.support.job_runs import run_job as run_bus_job

CONFIG = TopicConfig()
DAY_MS = 86_400_000
SETTINGS = Settings(target_bytes=None, small_bytes=None, files_min=2, compression="zstd")


def load(root: JobRoot) -> PartitionFiles:
    return load_files(TopicTables(str(root.folder)), root.first)


def names_in(root: JobRoot) -> set[str]:
    return {path.name for path in root.path().iterdir() if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> JobRoot:
    """Twelve records in four files, of two producers and of none, under two leader epochs."""
    root = JobRoot(tmp_path / "root")
    for number in range(4):
        producer = None if number == 2 else ProducerStamp(number % 2, 0, 3 * (number // 2))
        rows = [(f"k{n}".encode() if n else None, f"{number}:{n}".encode()) for n in range(3)]
        root.append(rows, producer=producer, leader_epoch=number // 2)
    return root


@pytest.fixture
def run_job(spark: SparkSession, root: JobRoot) -> Callable[..., int]:
    def run(leader: Leader = root, found: PartitionFiles | None = None) -> int:
        return compact_partition(spark, found or load(root), SETTINGS, CONFIG, leader)

    return run


@dataclass
class FailingLeader:
    """Answers with an error; `is_committed`: after it has done what it was asked."""

    root: JobRoot
    error: BusError
    is_committed: bool = False
    asked: list[tuple[SwapKind, bool]] = field(default_factory=list)  # of what kind, and whether the files were there

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        self.asked.append((kind, set(adds) <= names_in(self.root)))
        if self.is_committed:
            self.root.commit(partition, removes, adds, kind)
        raise self.error

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        return self.root.live_names(partition)


@dataclass
class RefusingLeader:
    """Answers as the broker does whose table refuses the files."""

    root: JobRoot

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        refused = self.root.tables[partition].rewrites.check_swap(removes, adds, kind)
        assert isinstance(refused, Refused)
        raise BusError(refused.code, refused.message)

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        return self.root.live_names(partition)


def files_of(spark: SparkSession, *sizes: int, compacted: int = 0, hole_before: int = -1) -> object:
    """One partition's files of ten offsets each; the first `compacted` ones are, and one has a hole before it."""
    rows, offset = [], 0
    for index, size in enumerate(sizes):
        offset += 5 if index == hole_before else 0
        rows.append(("t", 0, f"f{index}", offset, offset + 10, 10, size, 0, index < compacted))
        offset += 10
    return spark.createDataFrame(rows, FILES_SCHEMA)


@pytest.mark.parametrize(
    ("sizes", "compacted", "hole_before", "expected"),
    [
        ([10, 10, 10], 0, -1, {"f0": 0, "f1": 0, "f2": 0}),
        ([10, 60, 10, 10, 60, 10], 0, -1, {"f2": 20, "f3": 20}),  # a large file ends a run, and one alone is none
        ([40, 40, 40, 40, 40], 0, -1, {"f0": 0, "f1": 0, "f2": 0, "f3": 30, "f4": 30}),  # the third reaches the target
        ([10, 10, 10, 10], 2, -1, {"f0": 0, "f1": 0, "f2": 20, "f3": 20}),  # never across compacted_to
        ([10, 10, 10, 10], 0, 2, {"f0": 0, "f1": 0, "f2": 25, "f3": 25}),  # nor across a hole
        ([60, 60], 0, -1, {}),
        ([], 0, -1, {}),
    ],
)
def test_runs_are_small_neighbours_up_to_the_target(
    spark: SparkSession, sizes: Sequence[int], compacted: int, hole_before: int, expected: dict[str, int]
) -> None:
    files = files_of(spark, *sizes, compacted=compacted, hole_before=hole_before)
    chosen = choose_runs(files, target_bytes=100, small_bytes=50, files_min=2, span_ms=DAY_MS)
    assert {row.file: row.run for row in chosen.collect()} == expected


def test_partitions_do_not_share_runs_and_columns_stay(spark: SparkSession) -> None:
    rows = [("t", partition, f"f{n}", n * 10, n * 10 + 10, 10, 10, 0, False) for partition in (0, 1) for n in (0, 1)]
    chosen = choose_runs(
        spark.createDataFrame(rows, FILES_SCHEMA), target_bytes=100, small_bytes=50, files_min=2, span_ms=DAY_MS
    )
    expected = spark.createDataFrame([(*row, 0) for row in rows], f"{FILES_SCHEMA}, run long")
    assert_df_equality(chosen, expected, ignore_row_order=True, ignore_nullable=True)


def test_a_run_spans_less_than_a_segment_even_if_the_clock_went_back(spark: SparkSession) -> None:
    rows = [
        ("t", 0, f"f{n}", n * 10, n * 10 + 10, 10, 1, appended_ms, False)
        for n, appended_ms in enumerate([1_000, 1_050, 1_099, 1_100, 1_020, 1_199, 1_450, 1_470])
    ]
    files = spark.createDataFrame(rows, FILES_SCHEMA)
    chosen = choose_runs(files, target_bytes=100, small_bytes=50, files_min=2, span_ms=100)
    runs = [row.run for row in chosen.orderBy("base_offset").collect()]
    assert runs == [0, 0, 0, 30, 30, 30, 60, 60]


def test_four_files_become_one_with_the_same_rows(
    spark: SparkSession, root: JobRoot, run_job: Callable[..., int]
) -> None:
    folder = str(root.path())
    before = spark.read.format("delta").load(folder)
    old = before.orderBy("offset").collect()
    assert run_job() == 0
    after = spark.read.format("delta").load(folder)
    assert after.orderBy("offset").collect() == old
    (file,) = load(root).files
    assert (file.base_offset, file.next_offset, file.record_count, file.level) == (0, 12, 12, 1)
    assert root.breaches() == []
    assert not list(root.path().glob("_job-*"))


def test_records_below_the_log_start_are_not_in_the_new_file(
    spark: SparkSession, root: JobRoot, run_job: Callable[..., int]
) -> None:
    assert isinstance(root.table.cleanup.advance_log_start(4, leader_epoch=1, now_ms=NOW_MS), Committed)
    frame = spark.read.format("delta").load(str(root.path()))
    assert sorted(row.offset for row in frame.collect()) == list(range(3, 12))
    assert run_job() == 0
    again = spark.read.format("delta").load(str(root.path()))
    assert sorted(row.offset for row in again.collect()) == list(range(4, 12))
    (file,) = load(root).files
    assert (file.base_offset, file.next_offset, file.record_count) == (4, 12, 8)
    assert root.breaches() == []


def test_a_job_that_has_read_an_earlier_log_start_is_refused(
    root: JobRoot, run_job: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(root.table.cleanup.advance_log_start(4, leader_epoch=1, now_ms=NOW_MS), Committed)
    found, before = load(root), names_in(root)
    assert isinstance(root.table.cleanup.advance_log_start(5, leader_epoch=1, now_ms=NOW_MS), Committed)
    assert run_job(RefusingLeader(root), found) == 1
    assert names_in(root) == before
    assert f"or the log start, {5:020d}, found {4:020d}" in capsys.readouterr().err


def test_a_new_file_has_the_types_of_the_log_and_a_page_index(root: JobRoot, run_job: Callable[..., int]) -> None:
    run_job()
    written = pq.ParquetFile(root.path() / load(root).files[0].path)
    assert {field.name: field.type for field in written.schema_arrow} == {
        field.name: nullable_type(field.type) for field in LOG_SCHEMA
    }
    column = written.metadata.row_group(0).column(0)
    assert (column.has_column_index, column.has_offset_index, column.compression) == (True, True, "ZSTD")


def test_a_staging_folder_goes_with_its_job_and_so_do_those_of_killed_jobs(root: JobRoot) -> None:
    folder = root.path()
    (folder / "_job-killed").mkdir()
    (folder / "_job-killed" / "owner").touch()
    with staging(str(folder)) as alive, staging(str(folder)) as second:
        assert {path.name for path in folder.glob("_job-*")} == {Path(alive).name, Path(second).name}
    assert not list(folder.glob("_job-*"))


def test_row_groups_of_large_records_stay_small(spark: SparkSession, tmp_path: Path) -> None:
    root = JobRoot(tmp_path / "large")
    for number in range(3):
        root.append([(None, bytes([number]) * 1_000_000)] * 5)
    found = load(root)
    compact_partition(spark, found, SETTINGS, CONFIG, root)
    metadata = pq.ParquetFile(root.path() / load(root).files[0].path).metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert (sum(rows), max(rows)) == (15, 4)  # 4 MiB of records of a megabyte


def test_a_refused_swap_leaves_nothing_and_is_told(
    root: JobRoot, run_job: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = names_in(root)
    leader = FailingLeader(root, BusError(ErrorCode.INVALID_REQUEST, "expected live files, found others"))
    assert run_job(leader) == 1
    assert leader.asked == [(SwapKind.SAME_ROWS, True)]
    assert names_in(root) == before
    assert "refused, nothing has changed: INVALID_REQUEST: expected live files" in capsys.readouterr().err


def test_a_swap_whose_answer_is_lost_counts_if_the_table_has_it(
    root: JobRoot, run_job: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(FailingLeader(root, BusError(ErrorCode.NETWORK_EXCEPTION, "gone"), is_committed=True)) == 0
    assert "the table has them" in capsys.readouterr().err
    assert len(load(root).files) == 1


def test_files_stay_where_nobody_can_say_whether_they_are_wanted(
    root: JobRoot, run_job: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = names_in(root)
    assert run_job(FailingLeader(root, BusError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time"))) == 1
    assert len(names_in(root) - before) == 1
    assert "so far" in capsys.readouterr().err


def test_a_file_that_rots_is_not_carried_on(root: JobRoot, run_job: Callable[..., int]) -> None:
    found = load(root)
    before = names_in(root)
    path = root.path() / found.files[1].path
    data = bytearray(path.read_bytes())
    at = data.index(b"1:2")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"checksum|CRC|corrupt"):
        run_job(found=found)
    assert names_in(root) == before


def test_a_dry_run_shows_the_runs_and_asks_no_broker(
    spark: SparkSession, root: JobRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bus_job("compact_files", "--root", str(root.folder), "--dry-run", "--csv", "orders/0") == 0
    size = sum(file.size_bytes for file in load(root).files)
    expected = f"topic,partition,first_offset,last_offset,files,bytes\norders,0,0,11,4,{size}\n"
    assert capsys.readouterr().out == expected
    assert len(load(root).files) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "expected a topic of .*, found 'nowhere'"),
        (["orders/7"], "expected a partition of orders that is 0, found '7'"),
        (["--bootstrap", "127.0.0.1:1", "orders"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    spark: SparkSession,
    root: JobRoot,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    # As the job's own administrator, but it does not look for its broker for a minute.
    monkeypatch.setattr("bus.jobs.options.Admin", partial(Admin, default_api_timeout_ms=500))
    assert run_bus_job("compact_files", "--root", str(root.folder), *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert re.search(message, captured.err)


def test_sizes_are_numbers_above_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bus_job("compact_files", "--target-bytes", "0", "orders") == 2
    assert "'--target-bytes': 0 is not in the range x>=1" in capsys.readouterr().err
