"""The promises of the log that rows can break, as columns: DataFrames in, a row for each breach out.

Each rule is judged within each file first and then between a file and those before it, so that no task needs all rows
of a partition, and none all rows of a producer. The words are those of `bus log verify`; the rules are written down
here once more, so that neither judge hides a mistake of the other. One breach of a kind is told of each file.

`files` are what the log says of the live files (`log_rows.live_files`), `rows` what is in them
(`log_rows.read_log_rows`). Reads and writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from bus.model import SEQUENCE_MODULUS
from bus.records.log_schema import STATS_COLUMNS
from bus.spark.jobs import Window, sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LOG = ["topic", "partition"]
_FILE = [*_LOG, "file"]
_NEVER_NULL = ("offset", "timestamp", "timestamp_type", "leader_epoch")
_PRODUCER = ("producer_id", "producer_epoch", "sequence")


def summarize_files(rows: DataFrame, files: DataFrame) -> DataFrame:
    """A row for each file that has rows, with what the log says of it as `told`, and what its rows turned out to hold.

    Rows of our files are taken in the order that they have in the file, those of other engines, which owe none, by
    their offsets.
    """
    told = sql.struct(*(name for name in files.columns if name not in _FILE)).alias("told")
    joined = rows.join(files.select(*_FILE, told), _FILE)
    order = sql.when(sql.col("told.is_ours"), sql.col("position")).otherwise(sql.col("offset"))
    file = Window.partitionBy(*_FILE).orderBy("order")
    steps = joined.withColumn("order", order).select(
        "*",
        sql.lag("offset").over(file).alias("offset_before"),
        sql.lag("leader_epoch").over(file).alias("epoch_before"),
    )
    grows = sql.col("offset") > sql.col("offset_before")
    is_dense = sql.col("offset") == sql.col("offset_before") + 1
    has_gap = ~sql.when(sql.col("told.may_have_holes"), grows).otherwise(is_dense)
    stamps = reduce(lambda left, right: left + right, (sql.col(name).isNull().cast("int") for name in _PRODUCER))
    return steps.groupBy(*_FILE).agg(
        sql.first("told").alias("told"),
        sql.count("*").alias("rows"),
        *(sql.count_if(sql.col(name).isNull()).alias(f"{name}_nulls") for name in {*_NEVER_NULL, *STATS_COLUMNS}),
        *(
            kind(sql.col(name)).alias(f"{name}_{end}")
            for name in ("offset", "producer_id", "sequence", "leader_epoch")
            for kind, end in ((sql.min, "min"), (sql.max, "max"))
        ),
        sql.min(sql.unix_micros("timestamp")).alias("timestamp_min"),
        sql.max(sql.unix_micros("timestamp")).alias("timestamp_max"),
        sql.min(sql.when(has_gap, sql.struct("order", "offset_before", "offset"))).alias("gap"),
        sql.min(
            sql.when(
                sql.col("leader_epoch") < sql.col("epoch_before"),
                sql.struct("order", "epoch_before", "leader_epoch", "offset"),
            )
        ).alias("fall"),
        sql.min(sql.struct("order", "leader_epoch")).getField("leader_epoch").alias("first_epoch"),
        sql.min(sql.when(~sql.col("timestamp_type").isin(0, 1), sql.col("timestamp_type"))).alias("unknown_type"),
        sql.count_if(stamps.isin(1, 2)).alias("half_stamped"),
    )


def row_breaches(summaries: DataFrame) -> DataFrame:
    """What is wrong with the rows of single files."""
    gap, fall = sql.col("gap"), sql.col("fall")
    dense = sql.struct(
        sql.format_string("offset %d after %d", gap["offset_before"] + 1, gap["offset_before"]),
        gap["offset"].cast("string"),
    )
    grow = sql.struct(
        sql.format_string("an offset above %d after it", gap["offset_before"]), gap["offset"].cast("string")
    )
    has_holes = sql.col("told.may_have_holes")
    never_null = [
        _breach(
            sql.col(f"{name}_nulls") > 0,
            "no offset, timestamp, type or epoch is null",
            sql.lit(f"a value in every {name}"),
            sql.format_string("%d nulls", f"{name}_nulls"),
        )
        for name in _NEVER_NULL
    ]
    return _all_of(
        summaries,
        [
            *never_null,
            _breach(gap.isNotNull() & ~has_holes, "offsets are dense", dense["col1"], dense["col2"]),
            _breach(gap.isNotNull() & has_holes, "offsets grow", grow["col1"], grow["col2"]),
            _breach(
                fall.isNotNull(),
                "leader epochs never go back",
                sql.format_string("a leader epoch of at least %d", fall["epoch_before"]),
                sql.format_string("%d at offset %d", fall["leader_epoch"], fall["offset"]),
            ),
            _breach(
                sql.col("unknown_type").isNotNull(),
                "timestamp types are known",
                sql.lit("0 or 1"),
                sql.col("unknown_type").cast("string"),
            ),
            _breach(
                sql.col("half_stamped") > 0,
                "producers have id, epoch and sequence",
                sql.lit("nulls in the same rows of all three columns"),
                _counted("half_stamped", "row that has", "rows that have", " some of them"),
            ),
        ],
    )


def _counted(name: str, one: str, several: str, behind: str = "") -> Column:
    """`1 record`, `2 records`."""
    return sql.concat(name, sql.lit(" "), sql.when(sql.col(name) == 1, one).otherwise(several), sql.lit(behind))


def statistics_breaches(files: DataFrame, summaries: DataFrame) -> DataFrame:
    """Where what the log says of a file is not true of its rows; `files` are those that were read."""
    told = sql.col("told")
    maximum_ms = [sql.floor(sql.col("timestamp_max") / 1000), sql.ceil(sql.col("timestamp_max") / 1000)]
    time_min_ms = sql.floor(sql.col("timestamp_min") / 1000)
    checks = [_differs("numRecords", sql.col("rows"), told["records"])]
    for name in STATS_COLUMNS:
        checks.append(_differs(f"nullCount.{name}", sql.col(f"{name}_nulls"), told[f"{name}_nulls"]))
        if name == "timestamp":
            checks.append(_differs("minValues.timestamp in ms", time_min_ms, told["timestamp_min"]))
            checks.append(
                _differs("maxValues.timestamp in ms", maximum_ms[0], told["timestamp_max"], or_else=maximum_ms[1])
            )
        else:
            checks.append(_differs(f"minValues.{name}", sql.col(f"{name}_min"), told[f"{name}_min"]))
            checks.append(_differs(f"maxValues.{name}", sql.col(f"{name}_max"), told[f"{name}_max"]))
    covered = [
        sql.when(told["may_have_holes"], told[name]).otherwise(sql.col(f"offset_{end}"))
        for name, end in (("base_offset", "min"), ("last_offset", "max"))
    ]
    summary = sql.array(
        *(column.cast("bigint") for column in (covered[0], covered[1] + 1, sql.col("rows"))),
        *(column.cast("bigint") for column in (time_min_ms, maximum_ms[0], sql.col("leader_epoch_max"))),
    )
    checks.append(_differs("the tag", summary, told["tag"], when=told["tag"].isNotNull()))
    empty = files.join(summaries, _FILE, "left_anti").select(
        *_LOG,
        sql.lit("statistics are true").alias("promise"),
        "file",
        _counted("records", "record", "records").alias("expected"),
        sql.lit("none").alias("found"),
    )
    return _all_of(summaries, checks).unionAll(empty)


def epoch_breaches(summaries: DataFrame) -> DataFrame:
    """A file that begins under a leader epoch below one before it."""
    before = Window.partitionBy(*_LOG).orderBy("told.base_offset").rowsBetween(Window.unboundedPreceding, -1)
    highest = summaries.withColumn("highest", sql.max("leader_epoch_max").over(before))
    return _all_of(
        highest,
        [
            _breach(
                sql.col("first_epoch") < sql.col("highest"),
                "leader epochs never go back",
                sql.format_string("a leader epoch of at least %d", "highest"),
                sql.format_string("%d at its begin", "first_epoch"),
            )
        ],
    )


def summarize_producers(rows: DataFrame, files: DataFrame) -> DataFrame:
    """A row for each file and each idempotent producer that has records in it: its first and its last one, the first
    that does not follow the one before it, and the first that the spans of the file leave out."""
    told = sql.struct("is_ours", "base_offset", "may_have_holes", "losses", "spans").alias("told")
    stamped = rows.select(*_FILE, "offset", *_PRODUCER).dropna(subset=list(_PRODUCER))
    joined = stamped.join(files.select(*_FILE, told), _FILE)
    place = Window.partitionBy(*_FILE, "producer_id").orderBy("offset")
    record = sql.struct("offset", sql.col("producer_epoch").alias("epoch"), "sequence")
    steps = joined.withColumn("record", record).withColumn("before", sql.lag("record").over(place))
    is_broken = ~_follows(sql.col("before"), sql.col("record"), sql.col("told.may_have_holes"))
    is_held = sql.exists(
        "told.spans",
        lambda span: (
            sql.col("producer_id").between(span[0], span[1])
            & sql.col("producer_epoch").between(span[2], span[3])
            & sql.col("sequence").between(span[4], span[5])
        ),
    )
    return steps.groupBy(*_FILE, "producer_id").agg(
        sql.first("told").alias("told"),
        sql.min("record").alias("first"),
        sql.max("record").alias("last"),
        sql.min(sql.when(is_broken, sql.struct("record", "before"))).alias("broken"),
        sql.min(sql.when(sql.col("told.spans").isNotNull() & ~is_held, sql.col("record"))).alias("left_out"),
    )


def producer_breaches(producers: DataFrame) -> DataFrame:
    """Records of producers that are there twice, or not in their order; and spans that leave some out."""
    log = Window.partitionBy(*_LOG, "producer_id").orderBy("told.base_offset")
    before = producers.select(
        "*", sql.lag("last").over(log).alias("last_before"), sql.lag("told").over(log).alias("told_before")
    )
    may_have_holes = sql.col("told_before.may_have_holes") | (sql.col("told.losses") > sql.col("told_before.losses"))
    is_broken = sql.col("last_before").isNotNull() & ~_follows(sql.col("last_before"), sql.col("first"), may_have_holes)
    promise, left_out = "producers' sequences follow each other", sql.col("left_out")
    inside = sql.col("broken")
    return _all_of(
        before,
        [
            _breach(is_broken, promise, _next_of(sql.col("last_before")), _record_text(sql.col("first"))),
            _breach(inside.isNotNull(), promise, _next_of(inside["before"]), _record_text(inside["record"])),
            _breach(
                left_out.isNotNull(),
                "statistics are true",
                sql.format_string(
                    "a span for producer %d, epoch %d, sequence %d",
                    "producer_id",
                    left_out["epoch"],
                    left_out["sequence"],
                ),
                sql.lit("none in the file's tag"),
            ),
        ],
    )


def progress_breaches(logs: DataFrame, producers: DataFrame, files: DataFrame) -> DataFrame:
    """Producers of whom the log's `txn` does not say where their records end. `logs` have topic, partition,
    high_watermark, losses and txns; every live file of theirs has been read."""
    ends = producers.groupBy(*_LOG, "producer_id").agg(
        sql.max(sql.struct("told.base_offset", "file", "last", "told")).alias("end")
    )
    told_of = logs.selectExpr(*_LOG, "losses AS all_losses", "inline(txns)")
    txns = told_of.where("producer_id >= 0")
    forgotten = told_of.where("producer_id = -1").selectExpr(*_LOG, "shiftleft(bigint(epoch), 32) + sequence AS id_max")
    counts = files.groupBy(*_LOG).agg(sql.sum("records").alias("live_records"))
    whole = logs.join(counts, _LOG, "left").select(
        *_LOG,
        (sql.coalesce("live_records", sql.lit(0)) == sql.col("high_watermark")).alias("is_whole"),
        sql.col("losses").alias("losses_of_log"),
    )
    both = ends.join(txns, [*_LOG, "producer_id"], "full").join(whole, _LOG).join(forgotten, _LOG, "left")
    done = sql.shiftleft(sql.col("epoch").cast("bigint"), 32) + sql.col("sequence")
    expected = sql.shiftleft(sql.col("end.last.epoch").cast("bigint"), 32) + sql.col("end.last.sequence")
    has_holes = sql.col("end.told.may_have_holes") | (sql.col("losses_of_log") > sql.col("end.told.losses"))
    is_forgotten = sql.col("producer_id") <= sql.coalesce("id_max", sql.lit(-1))
    may_be_missing = sql.col("epoch").isNull() & (~sql.col("end.told.is_ours") | is_forgotten)
    is_wrong = ~done.eqNullSafe(expected) & ~sql.coalesce((done > expected) & has_holes, sql.lit(False))
    app = sql.format_string(
        "txn bus/%d at epoch %d and sequence %d", "producer_id", "end.last.epoch", "end.last.sequence"
    )
    told = sql.coalesce(sql.format_string("epoch %d and sequence %d", "epoch", "sequence"), sql.lit("none"))
    has_txn = sql.col("epoch").isNotNull()
    promise = "the log tells where producers ended"
    named = both.withColumn("file", sql.coalesce(sql.col("end.file"), sql.lit("_delta_log")))
    return _all_of(
        named,
        [
            _breach(
                sql.col("end").isNotNull() & is_wrong & ~may_be_missing,
                promise,
                app,
                sql.when(has_txn, told).otherwise(sql.lit("none")),
            ),
            _breach(
                sql.col("end").isNull() & sql.col("is_whole"),
                promise,
                sql.format_string("a record of bus/%d, which has a txn", "producer_id"),
                sql.lit("none"),
            ),
        ],
    )


# ------------------------------------------------------------------ columns


def _follows(before: Column, after: Column, may_have_holes: Column) -> Column:
    """Whether a record of a producer may come behind another of its own. Without one before it, it may. Later is what
    lies in the half of all sequences that is ahead."""
    step = sql.pmod(after["sequence"].cast("bigint") - before["sequence"].cast("bigint"), sql.lit(SEQUENCE_MODULUS))
    is_same, is_higher = after["epoch"] == before["epoch"], after["epoch"] > before["epoch"]
    strictly = (is_same & (step == 1)) | (is_higher & ((step == 1) | (after["sequence"] == 0)))
    loosely = is_higher | (is_same & (step > 0) & (step < SEQUENCE_MODULUS // 2))
    return before.isNull() | sql.when(may_have_holes, loosely).otherwise(strictly)


def _next_of(before: Column) -> Column:
    following = sql.pmod(before["sequence"].cast("bigint") + 1, sql.lit(SEQUENCE_MODULUS))
    return sql.format_string(
        "epoch %d and sequence %d of producer %d, or a higher epoch", before["epoch"], following, "producer_id"
    )


def _record_text(record: Column) -> Column:
    return sql.format_string(
        "epoch %d and sequence %d at offset %d", record["epoch"], record["sequence"], record["offset"]
    )


def _differs(
    what: str, actual: Column, told: Column, *, or_else: Column | None = None, when: Column | None = None
) -> Column:
    is_told = actual.eqNullSafe(told)
    if or_else is not None:
        is_told = is_told | or_else.eqNullSafe(told)
    condition = ~is_told if when is None else when & ~is_told
    texts = [sql.coalesce(column.cast("string"), sql.lit("none")) for column in (actual, told)]
    return _breach(condition, "statistics are true", sql.concat(sql.lit(f"{what} "), texts[0]), texts[1])


def _breach(condition: Column, promise: str, expected: Column, found: Column) -> Column:
    """A struct where the promise is broken, else null."""
    told = sql.struct(sql.lit(promise).alias("promise"), expected.alias("expected"), found.alias("found"))
    return sql.when(condition, told)


def _all_of(frame: DataFrame, checks: Sequence[Column]) -> DataFrame:
    """A row for each check that found something."""
    found = frame.select(*_FILE, sql.explode(sql.array_compact(sql.array(*checks))).alias("breach"))
    return found.select(*_LOG, "breach.promise", "file", "breach.expected", "breach.found")
