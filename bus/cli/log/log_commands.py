"""`bus log`: what the tables under a topic hold, and whether they keep what the log promises.

What is here reads the storage, never a broker, and never writes: it may run at any time. The commands that change a
log are in modules of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand, BusGroup
from bus.cli.failures import EXIT_FAILURE
from bus.cli.log.log_describe import describe, dump
from bus.cli.log.log_maintenance import clean, compact, dirs, roll, upgrade
from bus.cli.options import listing_format_option, root_option
from bus.cli.output import Column, Columns, Kind, echo, named_cells, resolve_form, write_listing
from bus.cli.partition_arguments import Target, open_store, partitions_of, target_argument
from bus.errors import count_of

if TYPE_CHECKING:
    from bus.model import TopicPartition
    from bus.storage_delta.repair.plan import RepairReport, RepairStep
    from bus.storage_delta.stores.store import ObjectStore
    from bus.storage_delta.verify.verification import Report


# `bus log repair`: mend tables that no broker would open, with the broker down.
#
# Guards two promises: nothing is changed unless `--execute` is there, and never while a broker holds the root.

_COLUMNS: Columns[tuple[TopicPartition, RepairStep]] = (
    Column("topic", lambda row: row[0].topic),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER),
    Column("action", lambda row: row[1].action),
    Column("subject", lambda row: row[1].subject),
    Column("first_offset", lambda row: _known(row[1].first_offset), Kind.NUMBER, "FROM"),
    Column("last_offset", lambda row: _known(row[1].last_offset), Kind.NUMBER, "TO"),
    Column("detail", lambda row: row[1].detail),
)


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


@click.command(
    cls=BusCommand,
    examples="""
    bus log repair orders/0
    bus log repair orders/0 --execute
    bus log repair orders --execute --report repair.jsonl
    bus log repair __cluster_metadata --execute
    """,
)
@target_argument()
@click.option("--execute", "is_executed", is_flag=True, help="Do it. Without this, only say what would be done.")
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    show_default=False,
    help="Write each step as a line of JSON.  [default: beside what is moved to the quarantine]",
)
@listing_format_option()
@root_option()
@click.pass_context
def repair(
    ctx: click.Context, target: str, is_executed: bool, report_file: Path | None, form: str | None, root: str
) -> None:
    """Mend the tables of a topic, or of one partition, that a broker would not open, or that lost a data file.

    Every record that can still be read stays. Offsets of which nothing is left are given up by name: consumers pass
    over them. What cannot be read is moved to the folder `quarantine` of the root, never deleted. No broker may run.
    """
    from bus.storage_delta.repair.repair import repair_partition
    from bus.storage_delta.root import open_storage_on

    chosen, store = Target(target), open_store(root)
    storage = open_storage_on(store, create=False, holder=f"bus log repair (process {os.getpid()})")
    reports = []
    try:
        for partition, topic_id in partitions_of(store, chosen).items():
            report = repair_partition(
                store,
                partition,
                topic_id=topic_id or storage.cluster_id,
                now_ms=time.time_ns() // 1_000_000,
                is_rehearsal=not is_executed,
            )
            reports.append(report)
            if is_executed and report_file is None and report.steps:
                echo(f"report: {_write_report(store, report)}", err=True)
    finally:
        storage.close()
    if report_file is not None:
        report_file.write_bytes(b"".join(report.to_lines() for report in reports))
    _tell(reports, form, is_executed=is_executed)
    if any(report.error is not None for report in reports):
        ctx.exit(EXIT_FAILURE)


def _write_report(store: ObjectStore, report: RepairReport) -> str:
    from bus.storage_delta.repair.plan import Quarantine

    key = Quarantine(store, report.partition).write(f"repair-{time.time_ns() // 1_000_000}.jsonl", report.to_lines())
    return f"{store.url}/{key}"


def _tell(reports: Sequence[RepairReport], form: str | None, *, is_executed: bool) -> None:
    rows = [(report.partition, step) for report in reports for step in report.steps]
    write_listing(_COLUMNS, rows, form)
    for report in reports:
        if report.error is not None:
            echo(f"error: {report.partition} cannot be mended: {report.error}", err=True)
    damaged = sum(bool(report.steps) for report in reports)
    verdict = "nothing to mend" if not damaged else "mended" if is_executed else "would be mended with --execute"
    of = count_of(damaged or len(reports), "partition")
    if not any(report.error for report in reports):
        echo(f"{of}: {verdict}", err=True)


_REPORT_COLUMNS: Columns[Report] = (
    Column("topic", lambda one: one.partition.topic, is_key=True),
    Column("partition", lambda one: one.partition.partition, Kind.NUMBER, is_key=True),
    Column("version", lambda one: one.version, Kind.NUMBER),
    Column("versions", lambda one: one.version_count, Kind.NUMBER),
    Column("checkpoints", lambda one: one.checkpoint_count, Kind.NUMBER),
    Column("files", lambda one: one.file_count, Kind.NUMBER),
    Column("records", lambda one: one.record_count, Kind.NUMBER),
    Column("size", lambda one: one.size_bytes, Kind.BYTES),
    Column("breaches", lambda one: len(one.breaches), Kind.NUMBER),
)


@click.group(cls=BusGroup)
def log() -> None:
    """Inspect and verify the tables under a topic, with the broker up or down; have a broker tidy them up."""


log.add_command(dirs)
log.add_command(describe)
log.add_command(dump)
log.add_command(roll)
log.add_command(compact)
log.add_command(clean)
log.add_command(upgrade)
log.add_command(repair)


@log.command(
    examples="""
    bus log verify orders
    bus log verify orders/0
    bus log verify --all
    bus log verify --all --no-data
    """
)
@target_argument(is_required=False)
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
    from bus.storage_delta.verify.verification import verify_partition, verify_root

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
    documents = (
        {**named_cells(_REPORT_COLUMNS, report), "breach_lines": _lines(report), "notes": report.notes}
        for report in reports
    )
    write_listing(_REPORT_COLUMNS, reports, form, documents=documents)
    if resolve_form(form) == "json":
        return
    for report in reports:
        for note in report.notes:
            echo(f"note: {report.partition}: {note}", err=True)
    breaches = [line for report in reports for line in _lines(report)]
    for line in breaches:
        echo(f"breach: {line}", err=True)
    verdict = count_of(len(breaches), "breach", "breaches") if breaches else "every promise is kept"
    echo(f"{count_of(len(reports), 'partition')}: {verdict}", err=True)


def _lines(report: Report) -> list[str]:
    return [str(breach) for breach in report.breaches]
