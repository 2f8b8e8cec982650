"""`bus log`: what the tables under a topic hold, and whether they keep what the log promises.

What is here reads the storage, never a broker, and never writes: it may run at any time. The commands that change a
log are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bus.cli.failures import EXIT_FAILURE
from bus.cli.groups import BusGroup
from bus.cli.log_dump import dump
from bus.cli.log_maintenance import clean, compact, roll
from bus.cli.log_targets import Target, open_store, partitions_of
from bus.cli.options import complete_topics, count_of, listing_format_option, root_option
from bus.cli.output import Column, human_bytes, resolve_form, write_json, write_listing

if TYPE_CHECKING:
    from bus.storage_delta.inspection import PartitionSummary, VersionSummary
    from bus.storage_delta.log_replay import AddedFile
    from bus.storage_delta.verification import Report

_PARTITION_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("version", is_number=True),
    Column("log_start", is_number=True),
    Column("high_watermark", "HW", is_number=True),
    Column("leader_epoch", "EPOCH", is_number=True),
    Column("records", is_number=True),
    Column("files", is_number=True),
    Column("size", is_bytes=True),
    Column("log_files", is_number=True),
    Column("log_size", is_bytes=True),
    Column("checkpoint", is_number=True),
)
_VERSION_COLUMNS = (
    Column("version", is_number=True),
    Column("time", is_time_ms=True),
    Column("operation"),
    Column("epoch", is_number=True),
    Column("offsets"),
    Column("records", is_number=True),
    Column("added", is_number=True),
    Column("removed", is_number=True),
    Column("size", is_bytes=True),
)
_FILE_COLUMNS = (
    Column("version", is_number=True),
    Column("offsets"),
    Column("records", is_number=True),
    Column("size", is_bytes=True),
    Column("file"),
)
_REPORT_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("version", is_number=True),
    Column("versions", is_number=True),
    Column("checkpoints", is_number=True),
    Column("files", is_number=True),
    Column("records", is_number=True),
    Column("size", is_bytes=True),
    Column("breaches", is_number=True),
)


@click.group(cls=BusGroup)
def log() -> None:
    """Inspect and verify the tables under a topic, with the broker up or down; have a broker tidy them up."""


log.add_command(dump)
log.add_command(roll)
log.add_command(compact)
log.add_command(clean)


def _target_argument(*, is_required: bool = True) -> Callable[[Any], Any]:
    return click.argument("target", metavar="TOPIC[/PARTITION]", required=is_required, shell_complete=complete_topics)


# ------------------------------------------------------------------ describe


@log.command(
    examples="""
    bus log describe orders
    bus log describe orders/0
    bus log describe orders/0 --versions 100
    bus log describe __cluster_metadata
    """
)
@_target_argument()
@click.option("--versions", "version_count", type=click.IntRange(min=0), default=10, help="How many of the newest.")
@click.option("--files", "file_count", type=click.IntRange(min=0), default=10, help="How many of the newest.")
@listing_format_option()
@root_option()
def describe(target: str, version_count: int, file_count: int, form: str | None, root: str) -> None:
    """Describe the tables of a topic; of one partition, its newest versions and data files, too."""
    from bus.storage_delta.inspection import describe_partition, describe_versions

    chosen = Target(target)
    store = open_store(root)
    summaries = [describe_partition(store, partition) for partition in partitions_of(store, chosen)]
    if chosen.partition is None or resolve_form(form) == "csv":
        rows = [_partition_row(summary) for summary in summaries]
        if resolve_form(form) == "table":
            click.echo(f"Topic: {chosen.topic}\tTopicId: {summaries[0].topic_id}")
            write_listing(_PARTITION_COLUMNS[1:], [row[1:] for row in rows], "table")
        else:
            write_listing(_PARTITION_COLUMNS, rows, form)
        return
    summary = summaries[0]
    versions = describe_versions(store, summary.partition, count_max=version_count) if version_count else []
    files = summary.files[-file_count:] if file_count else []
    if resolve_form(form) == "json":
        write_json([_as_object(summary, versions, files)])
    else:
        _write_partition(summary, versions, files)


def _partition_row(summary: PartitionSummary) -> tuple[Any, ...]:
    return (
        summary.partition.topic,
        summary.partition.partition,
        summary.version,
        summary.log_start,
        summary.high_watermark,
        summary.leader_epoch,
        summary.record_count,
        len(summary.files),
        summary.size_bytes,
        summary.log_file_count,
        summary.log_bytes,
        summary.last_checkpoint,
    )


def _as_object(
    summary: PartitionSummary, versions: Sequence[VersionSummary], files: Sequence[AddedFile]
) -> dict[str, Any]:
    names = [column.name for column in _PARTITION_COLUMNS]
    return {
        **dict(zip(names, _partition_row(summary), strict=True)),
        "topic_id": summary.topic_id,
        "path": summary.path,
        "first_version": summary.first_version,
        "checkpoints": list(summary.checkpoints),
        "unnamed_files": list(summary.unnamed_files),
        "newest_versions": [asdict(version) for version in versions],
        "newest_files": [asdict(file) for file in files],
    }


def _write_partition(summary: PartitionSummary, versions: Sequence[VersionSummary], files: Sequence[AddedFile]) -> None:
    checkpoints = ", ".join(map(str, summary.checkpoints)) or "none yet"
    unnamed = len(summary.unnamed_files)
    facts = {
        "Partition": f"{summary.partition.topic}/{summary.partition.partition}",
        "TopicId": summary.topic_id,
        "Table": summary.path,
        "Version": f"{summary.version} (files from version {summary.first_version} on)",
        "Offsets": f"log start {summary.log_start}, high watermark {summary.high_watermark}",
        "LeaderEpoch": str(summary.leader_epoch),
        "Data": f"{count_of(summary.record_count, 'record')} in {count_of(len(summary.files), 'file')}, "
        f"{human_bytes(summary.size_bytes)}",
        "Log": f"{count_of(summary.log_file_count, 'file')}, {human_bytes(summary.log_bytes)}",
        "Checkpoints": checkpoints,
    }
    if unnamed:
        facts["Unnamed"] = f"{count_of(unnamed, 'data file')} that this version does not name"
    for name, fact in facts.items():
        click.echo(f"{name + ':':<13}{fact}")
    if versions:
        click.echo(f"\nVersions, the newest {len(versions)}:")
        write_listing(_VERSION_COLUMNS, map(_version_row, versions), "table")
    if files:
        click.echo(f"\nData files, the newest {len(files)} of {len(summary.files):,}:")
        write_listing(_FILE_COLUMNS, map(_file_row, files), "table")


def _version_row(version: VersionSummary) -> tuple[Any, ...]:
    has_records = version.base_offset >= 0
    return (
        version.version,
        version.timestamp_ms,
        version.operation,
        version.leader_epoch if version.leader_epoch >= 0 else None,
        f"{version.base_offset}..{version.last_offset}" if has_records else None,
        version.record_count if has_records else None,
        version.files_added,
        version.files_removed,
        version.size_bytes if has_records else None,
    )


def _file_row(file: AddedFile) -> tuple[Any, ...]:
    return (file.version, f"{file.base_offset}..{file.last_offset}", file.record_count, file.size_bytes, file.path)


# ------------------------------------------------------------------ verify


@log.command(
    examples="""
    bus log verify orders
    bus log verify orders/0
    bus log verify --all
    bus log verify --all --no-data
    """
)
@_target_argument(is_required=False)
@click.option("--all", "is_all", is_flag=True, help="Every partition of the root, and the cluster's own metadata.")
@click.option("--no-data", is_flag=True, help="Look at the size of data files only, not into them.")
@listing_format_option()
@root_option()
@click.pass_context
def verify(ctx: click.Context, target: str | None, is_all: bool, no_data: bool, form: str | None, root: str) -> None:
    """Check every promise of the log: contiguous versions, dense offsets, true statistics, exact sizes, readable files,
    checkpoints that equal a replay, leader epochs that never go back.

    Exits with 1 if one is broken; each breach is a line that names file, version, what was expected and what was found.
    """
    from bus.storage_delta.verification import verify_partition, verify_root

    if is_all == (target is not None):
        raise click.UsageError("expected TOPIC, TOPIC/PARTITION or --all, and only one of them")
    store = open_store(root)
    if target is None:
        reports = list(verify_root(store, has_data_files=not no_data))
    else:
        reports = [
            verify_partition(store, partition, topic_id=topic_id, has_data_files=not no_data)
            for partition, topic_id in partitions_of(store, Target(target)).items()
        ]
    _write_reports(reports, form)
    if any(report.breaches for report in reports):
        ctx.exit(EXIT_FAILURE)


def _write_reports(reports: Sequence[Report], form: str | None) -> None:
    if resolve_form(form) == "json":
        write_json(
            [{**dict(_named(report)), "breach_lines": _lines(report), "notes": report.notes} for report in reports]
        )
        return
    write_listing(_REPORT_COLUMNS, [list(_named(report).values()) for report in reports], form)
    for report in reports:
        for note in report.notes:
            click.echo(f"note: {report.partition}: {note}", err=True)
    breaches = [line for report in reports for line in _lines(report)]
    for line in breaches:
        click.echo(f"breach: {line}", err=True)
    verdict = count_of(len(breaches), "breach", "breaches") if breaches else "every promise is kept"
    click.echo(f"{count_of(len(reports), 'partition')}: {verdict}", err=True)


def _named(report: Report) -> dict[str, Any]:
    cells = (
        report.partition.topic,
        report.partition.partition,
        report.version,
        report.version_count,
        report.checkpoint_count,
        report.file_count,
        report.record_count,
        report.size_bytes,
        len(report.breaches),
    )
    return dict(zip((column.name for column in _REPORT_COLUMNS), cells, strict=True))


def _lines(report: Report) -> list[str]:
    return [str(breach) for breach in report.breaches]
