"""Key compaction by Spark: which records stay, which files they go to, and that the bus itself would keep the same."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bus.errors import BusError, ErrorCode
from bus.jobs.compact_keys import Settings, assign_files, compact_partition, last_of_keys, plan, rows_to_write
from bus.ports import Committed, PreparedFiles
from bus.settings.topic import TopicConfig
from bus.spark.jobs import JobFailed
from bus.spark.log_files import PartitionFiles, load_files
from bus.tables.topics import TopicTables
from tests.support.job_root import NOW_MS, JobRoot, Row
from tests.support.job_runs import run_job

ROWS = "offset long, key binary, value binary, file string"
DAY_MS = 86_400_000
SETTINGS = Settings(to_offset=None, delete_retention_ms=None, target_bytes=None, compression="zstd")
CONFIG = TopicConfig(cleanup_policy=("compact",))


def load(root: JobRoot) -> PartitionFiles:
    return load_files(TopicTables(str(root.folder)), root.first)


def kept_offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.collect())


def test_the_last_row_of_each_key_stays_with_its_file_and_size(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [
            (0, b"a", b"old", "f"),
            (1, b"b", b"12345", "f"),
            (2, None, b"no key", "f"),
            (3, b"a", b"new", "g"),
            (4, b"c", b"", "g"),
        ],
        ROWS,
    )
    expected = spark.createDataFrame(
        [(1, "f", 6), (2, "f", 6), (3, "g", 4), (4, "g", 1)], "offset long, file string, bytes long"
    )
    kept = last_of_keys(rows, tombstones_below=0, last_offset=4)
    assert_df_equality(kept, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize(
    ("tombstones_below", "last_offset", "expected"),
    [
        (0, 9, [1, 2, 3]),  # all of them are young
        (2, 9, [2, 3]),
        (3, 9, [3]),  # a record with neither key nor value is no tombstone
        (9, 2, [2, 3]),
    ],
)
def test_old_tombstones_go_but_for_the_last_row(
    spark: SparkSession, tombstones_below: int, last_offset: int, expected: list[int]
) -> None:
    rows = spark.createDataFrame(
        [(0, b"a", b"v", "f"), (1, b"a", None, "f"), (2, b"b", None, "f"), (3, None, None, "f")], ROWS
    )
    kept = last_of_keys(rows, tombstones_below=tombstones_below, last_offset=last_offset)
    assert kept_offsets(kept) == expected


def test_a_tombstone_that_goes_takes_what_it_deleted_with_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(0, b"a", b"v", "f"), (1, b"a", None, "f"), (2, b"b", b"v", "f")], ROWS)
    assert kept_offsets(last_of_keys(rows, tombstones_below=2, last_offset=2)) == [2]


def test_a_struct_is_a_value_too(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(0, b"a", ("x",), "f"), (1, b"a", ("y",), "f"), (2, b"b", None, "f")],
        "offset long, key binary, value struct<type: string>, file string",
    )
    assert kept_offsets(last_of_keys(rows, tombstones_below=3, last_offset=2)) == [1, 2]


@pytest.mark.parametrize("seed", range(2))
def test_what_stays_is_what_a_walk_over_all_rows_keeps(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        (offset, chance.choice([None, *(b"%d" % n for n in range(9))]), chance.choice([None, b"v"]), f"f{offset // 7}")
        for offset in range(80)
    ]
    below = chance.randrange(81)
    last: dict[object, int] = {key if key is not None else offset: offset for offset, key, *_ in rows}
    expected = [
        offset
        for offset, key, value, _ in rows
        if last[key if key is not None else offset] == offset
        and not (key is not None and value is None and offset < below and offset != 79)
    ]
    kept = last_of_keys(spark.createDataFrame(rows, ROWS), tombstones_below=below, last_offset=79)
    assert kept_offsets(kept) == expected


def test_old_files_share_a_new_one_up_to_the_target(spark: SparkSession) -> None:
    kept = spark.createDataFrame(
        [(1, "a", 60), (7, "b", 50), (12, "c", 10), (13, "c", 80), (25, "d", 500), (31, "e", 1)],
        "offset long, file string, bytes long",
    )
    expected = spark.createDataFrame(
        [("a", 0), ("b", 0), ("c", 1), ("d", 2), ("e", 3)], "file string, run int"
    )  # they begin behind 0, 60, 110, 200 and 700 bytes
    assert_df_equality(assign_files(kept, target_bytes=100), expected, ignore_row_order=True, ignore_nullable=True)


def test_only_rows_that_stay_are_written_each_to_its_file(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(0, b"a", b"v", "f"), (1, b"a", b"w", "f"), (2, b"b", b"v", "g")], ROWS)
    kept = spark.createDataFrame([(1,), (2,)], "offset long")
    runs = spark.createDataFrame([("f", 0), ("g", 1)], "file string, run int")
    expected = spark.createDataFrame(
        [(1, b"a", b"w", 0), (2, b"b", b"v", 1)], "offset long, key binary, value binary, run int"
    )
    assert_df_equality(rows_to_write(rows, kept, runs), expected, ignore_row_order=True, ignore_nullable=True)


# ------------------------------------------------------------------ on a log


def profile_rows(first: int, count: int) -> list[Row]:
    """23 keys in turn and every eleventh record without one; every seventh has no value."""
    return [
        (None if n % 11 == 10 else f"k{n % 23}".encode(), None if n % 7 == 6 else f"v{n}".encode())
        for n in range(first, first + count)
    ]


@pytest.fixture
def root(tmp_path: Path) -> JobRoot:
    """Sixty records in six commits, a day apart."""
    root = JobRoot(tmp_path / "root", "profiles", configs={"cleanup.policy": "compact"})
    for number in range(6):
        root.append(profile_rows(10 * number, 10), now_ms=NOW_MS + number * DAY_MS)
    return root


NOW = NOW_MS + 6 * DAY_MS


def test_files_stay_that_are_too_young_and_the_newest_does_in_any_case(root: JobRoot) -> None:
    found = load(root)
    for config, settings, expected in [
        (CONFIG, SETTINGS, (50, 50)),
        (CONFIG, replace(SETTINGS, delete_retention_ms=3 * DAY_MS), (50, 40)),
        (replace(CONFIG, min_compaction_lag_ms=3 * DAY_MS), SETTINGS, (40, 40)),
        (CONFIG, replace(SETTINGS, to_offset=60), (60, 60)),
        (CONFIG, replace(SETTINGS, to_offset=35), (30, 30)),
        (replace(CONFIG, min_compaction_lag_ms=9 * DAY_MS), SETTINGS, (0, 0)),
    ]:
        planned = plan(found, settings, config, now_ms=NOW)
        end = planned.files[-1].next_offset if planned.files else 0
        assert (end, planned.tombstones_below) == expected


def test_the_same_records_stay_as_after_the_bus_s_own_compaction(
    spark: SparkSession, root: JobRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = JobRoot(tmp_path / "twin", "profiles", configs={"cleanup.policy": "compact"})
    for number in range(6):
        twin.append(profile_rows(10 * number, 10), now_ms=NOW_MS + number * DAY_MS)
    prepared = twin.table.rewrites.prepare_key_compaction(now_ms=NOW, tombstone_retention_ms=3 * DAY_MS, end_offset=50)
    assert isinstance(prepared, PreparedFiles)
    twin.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW)

    planned = plan(load(root), replace(SETTINGS, delete_retention_ms=3 * DAY_MS), CONFIG, now_ms=NOW)
    planned = replace(planned, target_bytes=20)
    compact_partition(spark, load(root), planned, compression="zstd", leader=root)
    columns = ["offset", "timestamp", "key", "value", "leader_epoch"]
    by_spark, by_bus = (
        spark.read.format("delta").load(str(one.path())).orderBy("offset").select(columns).collect()
        for one in (root, twin)
    )
    assert by_spark == by_bus
    assert len(by_spark) < 50
    files = load(root).files
    assert len(files) > 2, "a target of 20 bytes makes several files"
    assert [file.base_offset for file in files][1:] == [file.next_offset for file in files][:-1]
    assert (files[0].base_offset, files[-1].next_offset) == (0, 60)
    assert root.breaches() == []
    told = capsys.readouterr().err
    assert "of 50 records up to offset 49 stay" in told
    assert not list(root.path().glob("_job-*"))


def test_records_below_the_log_start_go_and_those_behind_it_are_as_after_the_bus_s_own_compaction(
    spark: SparkSession, root: JobRoot
) -> None:
    assert isinstance(root.table.cleanup.advance_log_start(25, leader_epoch=0, now_ms=NOW), Committed)
    planned = plan(load(root), replace(SETTINGS, delete_retention_ms=9 * DAY_MS), CONFIG, now_ms=NOW)
    compact_partition(spark, load(root), planned, compression="zstd", leader=root)
    last = {key or offset: offset for offset, (key, _) in enumerate(profile_rows(0, 50)) if offset >= 25}
    rows = spark.read.format("delta").load(str(root.path())).collect()
    assert sorted(row.offset for row in rows) == [*sorted(last.values()), *range(50, 60)]
    files = load(root).files
    assert (files[0].base_offset, files[-1].next_offset) == (25, 60)
    assert root.breaches() == []


def test_nothing_is_written_where_every_record_stays(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = JobRoot(tmp_path / "root", configs={"cleanup.policy": "compact"})
    root.append([(b"a", b"1"), (b"b", b"2")])
    root.append([(b"a", b"3")])
    version = root.table.state.version
    compact_partition(
        spark, load(root), plan(load(root), SETTINGS, CONFIG, now_ms=NOW), compression="none", leader=root
    )
    assert root.table.state.version == version
    assert "2 of 2 records up to offset 1 stay" in capsys.readouterr().err


def test_a_refused_swap_raises_and_leaves_nothing(spark: SparkSession, root: JobRoot) -> None:
    class Refusing(JobRoot):
        def __init__(self) -> None:
            pass

        def commit(self, *swap: object) -> int:
            raise BusError(ErrorCode.POLICY_VIOLATION, "not compacted")

    before = sorted(path.name for path in root.path().iterdir())
    planned = plan(load(root), SETTINGS, CONFIG, now_ms=NOW)
    with pytest.raises(JobFailed, match="profiles-0: the swap was refused, nothing has changed: POLICY_VIOLATION"):
        compact_partition(spark, load(root), planned, compression="zstd", leader=Refusing())
    assert sorted(path.name for path in root.path().iterdir()) == before


def test_a_topic_that_is_not_compacted_is_left_alone(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    JobRoot(tmp_path / "root").append([(b"a", b"1")])
    assert run_job("compact_keys", "--root", str(tmp_path / "root"), "orders") == 1
    expected = "error: orders: expected a cleanup.policy with compact, found delete\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_dry_run_tells_what_would_stay_and_asks_no_broker(
    spark: SparkSession, root: JobRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    version = root.table.state.version
    assert (
        run_job("compact_keys", "--root", str(root.folder), "--dry-run", "--bootstrap", "127.0.0.1:1", "profiles/0")
        == 0
    )
    assert " of 50 records up to offset 49 stay" in capsys.readouterr().err
    assert root.table.state.version == version
