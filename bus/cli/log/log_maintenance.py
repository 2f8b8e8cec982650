"""`bus log roll`, `compact` and `clean`: what the broker does for its logs in time, now and by hand.

Unlike the rest of `bus log` these ask a broker: only a partition's leader writes to its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.options import address_option, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, echo, human_bytes, write_listing
from bus.cli.partition_arguments import Target, partitions_in
from bus.errors import count_of

if TYPE_CHECKING:
    from bus.client.values import MaintainedLog

_COLUMNS = (
    Column("topic", is_key=True),
    Column("partition", is_number=True, is_key=True),
    Column("version", is_number=True),
    Column("files_before", is_number=True),
    Column("files_after", is_number=True),
    Column("bytes_before", "SIZE-BEFORE", is_bytes=True),
    Column("bytes_after", "SIZE-AFTER", is_bytes=True),
    Column("rewritten_bytes", "REWRITTEN", is_bytes=True),
    Column("log_start", is_number=True),
    Column("dropped_versions", is_number=True),
    Column("deleted_files", is_number=True),
    Column("deleted_bytes", "DELETED", is_bytes=True),
)


def _by_hand(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that all of them have."""
    options = (
        click.argument("target", metavar="TOPIC[/PARTITION]", shell_complete=complete_topics),
        listing_format_option(),
        address_option(),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    cls=BusCommand,
    examples="""
    bus log roll orders
    bus log roll orders/0 --format json
    """,
)
@_by_hand
def roll(target: str, form: str | None, address: str) -> None:
    """Make few large data files out of many small ones, due or not.

    No record comes, goes or moves: Delta streams and consumers notice nothing. Shows what each partition had and has,
    and tells on standard error as partitions finish; Ctrl-C leaves those alone that were not begun.
    """
    _maintain("roll", target, form, address)


@click.command(
    cls=BusCommand,
    examples="""
    bus log compact customers
    bus log compact customers/0
    """,
)
@_by_hand
def compact(target: str, form: str | None, address: str) -> None:
    """Keep of every key its last record, due or not; only where cleanup.policy has compact.

    Offsets and order stay. Records younger than min.compaction.lag.ms and those of the newest data file stay, and so do
    tombstones for delete.retention.ms.
    """
    _maintain("compact", target, form, address)


@click.command(
    cls=BusCommand,
    examples="""
    bus log clean orders
    bus log clean orders/0
    """,
)
@_by_hand
def clean(target: str, form: str | None, address: str) -> None:
    """Do now what retention is due, and delete what is old enough of Delta versions, removed data files and orphans.

    Nothing goes that the topic's configs keep: retention.ms, retention.bytes, delta.log.retention.ms,
    delta.log.versions.max and file.delete.delay.ms count as ever.
    """
    _maintain("clean", target, form, address)


def _maintain(action: str, target: str, form: str | None, address: str) -> None:
    chosen = Target(target)
    done: list[MaintainedLog] = []
    with open_admin(address) as admin:
        scope = {chosen.topic: () if chosen.partition is None else (chosen.partition,)}
        numbers = [one.partition for one in partitions_in(scope, admin)]
        try:
            for one in _told(admin.maintain_log(chosen.topic, action, numbers), chosen.topic, len(numbers)):
                done.append(one)
        finally:
            if done:
                rows = [_row(chosen.topic, one) for one in sorted(done, key=lambda one: one.partition)]
                write_listing(_COLUMNS, rows, form)


def _told(results: Iterator[MaintainedLog], topic: str, count: int) -> Iterator[MaintainedLog]:
    for number, one in enumerate(results, start=1):
        echo(f"{topic}/{one.partition}: {_summary(one)} ({number} of {count_of(count, 'partition')})", err=True)
        yield one


def _summary(one: MaintainedLog) -> str:
    parts = []
    if one.rewritten_bytes or one.files_before != one.files_after:
        parts.append(
            f"{one.files_before:,} -> {count_of(one.files_after, 'file')}, "
            f"{human_bytes(one.bytes_before)} -> {human_bytes(one.bytes_after)}"
        )
    if one.dropped_versions:
        parts.append(f"{count_of(one.dropped_versions, 'version')} dropped")
    if one.deleted_files:
        parts.append(f"{count_of(one.deleted_files, 'file')} deleted, {human_bytes(one.deleted_bytes)}")
    return "; ".join(parts) or "nothing to do"


def _row(topic: str, one: MaintainedLog) -> tuple[Any, ...]:
    return (
        topic,
        one.partition,
        one.version,
        one.files_before,
        one.files_after,
        one.bytes_before,
        one.bytes_after,
        one.rewritten_bytes,
        one.log_start,
        one.dropped_versions,
        one.deleted_files,
        one.deleted_bytes,
    )
