"""`bus log describe`: the tables of a topic, and of one partition its newest versions and data files.

Reads the storage, never a broker, and never writes: it may run at any time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.options import complete_topics, listing_format_option, root_option
from bus.cli.output import (
    Column,
    Columns,
    Kind,
    echo,
    human_bytes,
    named_cells,
    resolve_form,
    write_json,
    write_listing,
)
from bus.cli.partition_arguments import Target, open_store, partitions_of, target_argument
from bus.cli.records.record_format import value_bytes
from bus.errors import count_of

if TYPE_CHECKING:
    import pyarrow as pa

    from bus.storage_delta.files.live_file import LiveFile
    from bus.storage_delta.log.summary import EndedTransaction, PartitionSummary, StagedTransaction, VersionSummary
    from bus.storage_delta.stores.store import ObjectStore


_PARTITION_COLUMNS: Columns[PartitionSummary] = (
    Column("topic", lambda one: one.partition.topic, is_in_heading=True),
    Column("partition", lambda one: one.partition.partition, Kind.NUMBER, is_key=True),
    Column("version", lambda one: one.version, Kind.NUMBER),
    Column("log_start", lambda one: one.log_start, Kind.NUMBER),
    Column("high_watermark", lambda one: one.high_watermark, Kind.NUMBER, "HW"),
    Column("leader_epoch", lambda one: _known(one.leader_epoch), Kind.NUMBER, "EPOCH"),
    Column("records", lambda one: one.record_count, Kind.NUMBER),
    Column("files", lambda one: len(one.files), Kind.NUMBER),
    Column("size", lambda one: one.size_bytes, Kind.BYTES),
    # level:files, of what was never rewritten first
    Column("levels", lambda one: " ".join(f"{each.level}:{each.file_count}" for each in one.levels) or None),
    # of a log that was compacted by key
    Column("dirty_ratio", lambda one: round(one.dirty_ratio, 3) if one.compacted_to else None, Kind.NUMBER, "DIRTY"),
    Column("reclaimable", lambda one: one.reclaimable_bytes, Kind.BYTES),
    Column("orphans", lambda one: len(one.orphans), Kind.NUMBER),
    Column("log_files", lambda one: one.log_file_count, Kind.NUMBER),
    Column("log_size", lambda one: one.log_bytes, Kind.BYTES),
    Column("checkpoint", lambda one: one.last_checkpoint, Kind.NUMBER),
    Column("checkpoint_lag", lambda one: one.checkpoint_lag, Kind.NUMBER, "BEHIND"),
    Column("foreign_writers", lambda one: "refused" if one.is_managed else "allowed", label="WRITERS"),
)
_VERSION_COLUMNS: Columns[VersionSummary] = (
    Column("version", lambda one: one.version, Kind.NUMBER, is_key=True),
    Column("time", lambda one: one.timestamp_ms, Kind.TIME_MS),
    Column("operation", lambda one: one.operation),
    Column("epoch", lambda one: _known(one.leader_epoch), Kind.NUMBER),
    Column("offsets", lambda one: f"{one.added.base_offset}..{one.added.last_offset}" if _has_records(one) else None),
    Column("records", lambda one: one.added.record_count if _has_records(one) else None, Kind.NUMBER),
    Column("added", lambda one: one.added.file_count, Kind.NUMBER),
    Column("removed", lambda one: one.removed.file_count, Kind.NUMBER),
    Column("size", lambda one: one.added.size_bytes if _has_records(one) else None, Kind.BYTES),
)
_FILE_COLUMNS: Columns[LiveFile] = (
    Column("version", lambda one: _known(one.version), Kind.NUMBER, is_key=True),
    Column("level", lambda one: one.level, Kind.NUMBER),
    Column("offsets", lambda one: f"{one.base_offset}..{one.next_offset - 1}", is_key=True),
    Column("records", lambda one: one.record_count, Kind.NUMBER),
    Column("size", lambda one: one.size_bytes, Kind.BYTES),
    Column("file", lambda one: one.path),
)
_TRANSACTION_COLUMNS: Columns[EndedTransaction] = (
    Column("transactional_id", lambda one: one.transactional_id, is_key=True),
    Column("number", lambda one: one.number, Kind.NUMBER),
    Column("outcome", lambda one: "committed" if one.is_applied else "aborted"),
    Column("time", lambda one: one.ended_ms or None, Kind.TIME_MS),
)
_STAGED_COLUMNS: Columns[StagedTransaction] = (
    Column("coordinator_partition", lambda one: one.coordinator_partition, Kind.NUMBER, "COORDINATOR", is_key=True),
    Column("producer_id", lambda one: one.producer_id, Kind.NUMBER, is_key=True),
    Column("epoch", lambda one: one.producer_epoch, Kind.NUMBER, is_key=True),
    Column("last_sequence", lambda one: one.last_sequence, Kind.NUMBER),
    Column("size", lambda one: one.size_bytes, Kind.BYTES),
    Column("newest", lambda one: one.newest_ms, Kind.TIME_MS),
)


@click.command(
    cls=BusCommand,
    examples="""
    bus log describe orders
    bus log describe orders/0
    bus log describe orders/0 --versions 100
    bus log describe __cluster_metadata
    """,
)
@target_argument()
@click.option(
    "--versions", "version_count", type=click.IntRange(min=0), default=10, help="How many of the newest Delta versions."
)
@click.option(
    "--files", "file_count", type=click.IntRange(min=0), default=10, help="How many of the newest data files."
)
@click.option(
    "--transactions",
    "transaction_count",
    type=click.IntRange(min=0),
    default=10,
    help="How many of those that ended last, one of each transactional id.",
)
@listing_format_option()
@root_option()
def describe(
    target: str, version_count: int, file_count: int, transaction_count: int, form: str | None, root: str
) -> None:
    """Describe the tables of a topic; of one partition, its newest versions, data files and transactions, too.

    The epoch is that of the leader that committed last, and is empty while none has. bus offsets asks a broker, and
    shows the epoch of the leader that answers.
    """
    from bus.storage_delta.log.summary import describe_partition, describe_versions, load_entries

    chosen = Target(target)
    store = open_store(root)
    summaries = [describe_partition(store, partition) for partition in partitions_of(store, chosen)]
    if chosen.partition is None or resolve_form(form) == "csv":
        _write_partitions(chosen.topic, summaries, form)
        return
    summary = summaries[0]
    versions = describe_versions(store, summary.partition, count_max=version_count) if version_count else []
    files = summary.files[-file_count:] if file_count else []
    transactions = summary.transactions[-transaction_count:] if transaction_count else []
    if resolve_form(form) == "json":
        entries = load_entries(store, summary, files)
        newest = {"newest_files": entries, "newest_transactions": [asdict(one) for one in transactions]}
        write_json([{**_as_object(summary, versions), **newest}])
    else:
        _write_partition(summary, versions, files)
        _write_transactions(summary, transactions)


def _write_partitions(topic: str, summaries: Sequence[PartitionSummary], form: str | None) -> None:
    facts = [f"Topic: {topic}", f"TopicId: {summaries[0].topic_id}"]
    write_listing(_PARTITION_COLUMNS, summaries, form, headings=[facts])


def _known(number: int) -> int | None:
    """An epoch, or a version. None: no leader has committed anything yet; nothing tells of the version."""
    return number if number >= 0 else None


def _has_records(version: VersionSummary) -> bool:
    return version.added.base_offset >= 0


def _as_object(summary: PartitionSummary, versions: Sequence[VersionSummary]) -> dict[str, Any]:
    return {
        **named_cells(_PARTITION_COLUMNS, summary),
        "topic_id": summary.topic_id,
        "path": summary.path,
        "first_version": summary.first_version,
        "compacted_to": summary.compacted_to,
        "dirty_files": summary.dirty_file_count,
        "dirty_bytes": summary.dirty_bytes,
        "files_by_level": [asdict(level) for level in summary.levels],
        "lost_offsets": [[first, following - 1] for first, following in summary.lost_ranges],
        "checkpoints": list(summary.checkpoints),
        "checkpoint_ms": summary.checkpoint_ms,
        "kept_files": dict(summary.kept_files),
        "orphan_files": dict(summary.orphans),
        "transactional_ids": len(summary.transactions),
        "staged_transactions": [asdict(one) for one in summary.staged],
        "newest_versions": [asdict(one) | {"leader_epoch": _known(one.leader_epoch)} for one in versions],
    }


def _write_partition(summary: PartitionSummary, versions: Sequence[VersionSummary], files: Sequence[LiveFile]) -> None:
    for name, fact in _facts(summary, now_ms=time.time_ns() // 1_000_000):
        echo(f"{name + ':':<14}{fact}")
    if versions:
        echo(f"\nVersions, the newest {len(versions)}:")
        write_listing(_VERSION_COLUMNS, versions, "table")
    if files:
        echo(f"\nData files, the newest {len(files)} of {len(summary.files):,}:")
        write_listing(_FILE_COLUMNS, files, "table")


def _write_transactions(summary: PartitionSummary, transactions: Sequence[EndedTransaction]) -> None:
    if transactions:
        echo(f"\nTransactions, the newest {len(transactions)} of {len(summary.transactions):,}:")
        write_listing(_TRANSACTION_COLUMNS, transactions, "table")
    if summary.staged:
        echo("\nStaged, not in the table:")
        write_listing(_STAGED_COLUMNS, summary.staged, "table")


def _facts(summary: PartitionSummary, *, now_ms: int) -> Iterator[tuple[str, str]]:
    yield "Partition", f"{summary.partition.topic}/{summary.partition.partition}"
    yield "TopicId", summary.topic_id
    yield "Table", summary.path
    yield "Version", f"{summary.version} (files from version {summary.first_version} on)"
    yield "Offsets", f"log start {summary.log_start}, high watermark {summary.high_watermark}"
    if summary.lost_ranges:
        lost = ", ".join(f"{first} to {following - 1}" for first, following in summary.lost_ranges)
        yield "Lost", f"offsets {lost}: their records were given up by a repair"
    yield "Writers", "the bus alone" if summary.is_managed else "other Delta engines, too: see bus log upgrade"
    yield "LeaderEpoch", str(summary.leader_epoch) if summary.leader_epoch >= 0 else "none has committed yet"
    files = f"{count_of(len(summary.files), 'file')}, {human_bytes(summary.size_bytes)}"
    yield "Data", f"{count_of(summary.record_count, 'record')} in {files}"
    for level in summary.levels:
        yield f"  level {level.level}", f"{count_of(level.file_count, 'file')}, {human_bytes(level.size_bytes)}"
    if summary.compacted_to:
        dirty = f"{count_of(summary.dirty_file_count, 'file')}, {human_bytes(summary.dirty_bytes)}"
        yield "Compacted", f"up to offset {summary.compacted_to}"
        yield "Dirty", f"{summary.dirty_ratio:.1%}: {dirty}"
    kept = f"{count_of(len(summary.kept_files), 'file')}, {human_bytes(summary.reclaimable_bytes)}"
    yield "Reclaimable", f"{kept} that only older versions have"
    yield "Log", f"{count_of(summary.log_file_count, 'file')}, {human_bytes(summary.log_bytes)}"
    yield "Checkpoints", ", ".join(map(str, summary.checkpoints)) or "none yet"
    if summary.last_checkpoint is not None:
        yield "Checkpoint", _checkpoint_age(summary, now_ms)
    if summary.orphans:
        size = human_bytes(sum(summary.orphans.values()))
        yield "Orphans", f"{count_of(len(summary.orphans), 'data file')}, {size} that no version names"


def _checkpoint_age(summary: PartitionSummary, now_ms: int) -> str:
    behind = f"of version {summary.last_checkpoint}, {count_of(summary.checkpoint_lag, 'version')} behind"
    if summary.checkpoint_ms is None:
        return behind
    return f"{behind}, {max(0, now_ms - summary.checkpoint_ms) // 1000:,} s old"


# `bus log dump`: the records as they lie in the data files, in the form of Kafka's DumpLogSegments.


@click.command(
    cls=BusCommand,
    examples="""
    bus log dump orders/0 --print-data
    bus log dump orders/0 --from-offset 1500 --to-offset 1510
    bus log dump orders/0 --file 00000000000000000000-3f0c.parquet
    """,
)
@click.argument("target", metavar="TOPIC/PARTITION", shell_complete=complete_topics)
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="The first offset to show.")
@click.option("--to-offset", type=click.IntRange(min=0), help="The offset to stop before.  [default: the end]")
@click.option("--file", "path", metavar="NAME", help="Only this data file, even one that the table does not name.")
@click.option("--print-data", is_flag=True, help="Keys and values, too.")
@root_option()
def dump(target: str, from_offset: int, to_offset: int | None, path: str | None, print_data: bool, root: str) -> None:
    """Show the records as they lie in the data files, as Kafka's DumpLogSegments does."""
    from bus.storage_delta.log.listing import partition_folder
    from bus.storage_delta.log.reading import load_state

    chosen = Target(target)
    if chosen.partition is None:
        raise click.BadParameter(f"expected TOPIC/PARTITION, found {target!r}")
    store = open_store(root)
    partition = next(iter(partitions_of(store, chosen)))
    folder = partition_folder(partition)
    files = load_state(store, folder).files_by_offset
    if path is not None:
        name = path.rsplit("/", 1)[-1]
        named = [file for file in files if file.path == name]
        if not named:
            echo(f"note: the table does not name {name} at its current version", err=True)
        _dump_file(store, folder, name, named[0] if named else None, from_offset, to_offset, print_data)
        return
    for file in files:
        if file.next_offset > from_offset and (to_offset is None or file.base_offset < to_offset):
            _dump_file(store, folder, file.path, file, from_offset, to_offset, print_data)


def _dump_file(
    store: ObjectStore,
    folder: str,
    path: str,
    file: LiveFile | None,
    from_offset: int,
    to_offset: int | None,
    print_data: bool,
) -> None:
    from bus.storage_delta.files.trials import read_records

    echo(f"Dumping {path}")
    if file is not None:
        echo(f"Starting offset: {file.base_offset}")
        echo(
            f"baseOffset: {file.base_offset} lastOffset: {file.next_offset - 1} count: {file.record_count} "
            f"version: {'-' if file.version < 0 else file.version} size: {file.size_bytes}"
        )
    batches = read_records(store, folder, path, from_offset=from_offset, to_offset=to_offset)
    if file is None:
        first = next(batches, None)
        if first is None:
            return
        echo(f"Starting offset: {first.column('offset')[0].as_py()}")
        _dump_batch(first, print_data)
    for batch in batches:
        _dump_batch(batch, print_data)


def _dump_batch(batch: pa.RecordBatch, print_data: bool) -> None:
    import pyarrow as pa

    if not print_data and not pa.types.is_nested(batch.schema.field("value").type):
        batch = batch.set_column(
            batch.schema.get_field_index("value"), "value", _sizes(batch.column("value"))
        ).set_column(batch.schema.get_field_index("key"), "key", _sizes(batch.column("key")))
    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    lines = [_dump_line(row, int(at), print_data) for row, at in zip(_rows(batch), times, strict=True)]
    echo("\n".join(lines))


def _sizes(column: pa.Array) -> pa.Array:
    """Sizes instead of bytes: they need not become Python objects to be counted."""
    import pyarrow.compute as pc

    return pc.binary_length(column)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    index = batch.schema.get_field_index("timestamp")
    return batch.remove_column(index).to_pylist()  # type: ignore[no-any-return]


def _dump_line(row: dict[str, Any], timestamp_ms: int, print_data: bool) -> str:
    kind = ("CreateTime", "LogAppendTime")[row["timestamp_type"]]
    headers = ",".join(header["key"] for header in row["headers"] or ())
    line = (
        f"| offset: {row['offset']} {kind}: {timestamp_ms} keySize: {_size(row['key'])} "
        f"valueSize: {_size(row['value'])} leaderEpoch: {row['leader_epoch']} "
        f"producerId: {_or_none(row['producer_id'])} producerEpoch: {_or_none(row['producer_epoch'])} "
        f"sequence: {_or_none(row['sequence'])} headerKeys: [{headers}]"
    )
    if print_data:
        for name, label in (("key", "key"), ("value", "payload")):
            if row[name] is not None:
                line += f" {label}: {value_bytes(row[name]).decode(errors='backslashreplace')}"
    return line


def _size(data: Any) -> int:
    """`data` is the size itself where no more is to be shown."""
    if data is None:
        return -1
    return data if isinstance(data, int) else len(value_bytes(data))


def _or_none(value: int | None) -> int:
    return -1 if value is None else value
