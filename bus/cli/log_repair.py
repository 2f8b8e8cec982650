"""`bus log repair`: mend tables that no broker would open, with the broker down.

Guards two promises: nothing is changed unless `--execute` is there, and never while a broker holds the root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bus.cli.failures import EXIT_FAILURE
from bus.cli.groups import BusCommand
from bus.cli.options import listing_format_option, root_option
from bus.cli.output import Column, echo, write_listing
from bus.cli.partition_arguments import Target, open_store, partitions_of, target_argument
from bus.errors import count_of

if TYPE_CHECKING:
    from bus.storage_delta.repair.report import RepairReport
    from bus.storage_delta.stores.store import ObjectStore

_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("action"),
    Column("subject"),
    Column("first_offset", "FROM", is_number=True),
    Column("last_offset", "TO", is_number=True),
    Column("detail"),
)


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
    from bus.storage_delta.repair.report import Quarantine

    key = Quarantine(store, report.partition).write(f"repair-{time.time_ns() // 1_000_000}.jsonl", report.to_lines())
    return f"{store.url}/{key}"


def _tell(reports: Sequence[RepairReport], form: str | None, *, is_executed: bool) -> None:
    rows = [
        (
            report.partition.topic,
            report.partition.partition,
            step.action,
            step.subject,
            step.first_offset if step.first_offset >= 0 else None,
            step.last_offset if step.last_offset >= 0 else None,
            step.detail,
        )
        for report in reports
        for step in report.steps
    ]
    write_listing(_COLUMNS, rows, form)
    for report in reports:
        if report.error is not None:
            echo(f"error: {report.partition} cannot be mended: {report.error}", err=True)
    damaged = sum(bool(report.steps) for report in reports)
    verdict = "nothing to mend" if not damaged else "mended" if is_executed else "would be mended with --execute"
    of = count_of(damaged or len(reports), "partition")
    if not any(report.error for report in reports):
        echo(f"{of}: {verdict}", err=True)
