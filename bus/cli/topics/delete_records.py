"""`bus topics delete-records`: let go of the records below an offset, partition by partition.

Guards two promises: the offsets that are shown, and agreed to, are those that are sent, so records that come meanwhile
stay; and a partition that refuses keeps no other from being done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_topics, confirm, listing_format_option, open_admin, yes_option
from bus.cli.output import Column, Columns, Kind, echo, resolve_form, write_listing
from bus.cli.partition_arguments import Target, TimestampType, partitions_in
from bus.errors import BusError, ErrorCode, count_of
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from bus.records.json_text import format_exact, parse_exact

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

_ALL = -1  # everything below the high watermark
_FILE_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Deletion:
    """The deletion in one partition. `low_watermark` is where the log starts then, None if `error` says why nothing is
    deleted."""

    partition: TopicPartition
    log_start: int
    high_watermark: int
    low_watermark: int | None
    version: int | None = None  # once it is done
    error: str | None = None

    @property
    def offset_count(self) -> int:
        return 0 if self.low_watermark is None else self.low_watermark - self.log_start


_COLUMNS: Columns[_Deletion] = (
    Column("topic", lambda one: one.partition.topic, is_key=True),
    Column("partition", lambda one: one.partition.partition, Kind.NUMBER, is_key=True),
    Column("log_start", lambda one: one.log_start, Kind.NUMBER),
    Column("high_watermark", lambda one: one.high_watermark, Kind.NUMBER, "HW"),
    Column("low_watermark", lambda one: one.low_watermark, Kind.NUMBER),
    Column("version", lambda one: one.version, Kind.NUMBER),
    Column("error", lambda one: one.error),
)


@click.command(
    "delete-records",
    cls=BusCommand,
    examples="""
    bus topics delete-records orders/0 --offset 1500
    bus topics delete-records orders --before 2013-07-01T12:00 --dry-run
    bus topics delete-records orders --all --yes
    bus topics delete-records --offset-json-file offsets.json
    """,
)
@click.argument("target", metavar="[TOPIC[/PARTITION]]", required=False, shell_complete=complete_topics)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Records below this offset.")
@click.option("--all", "is_all", is_flag=True, help="All records that are committed now.")
@click.option(
    "--before",
    type=TimestampType(),
    metavar="TIME",
    help="Records before the first one of that time on; ISO 8601 (UTC), or @-7d.",
)
@click.option(
    "--offset-json-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Kafka's file of topics, partitions and offsets; offset -1: all.",
)
@click.option("--dry-run", is_flag=True, help="Only show where the logs would start.")
@yes_option()
@listing_format_option()
@address_option()
def delete_records(
    target: str | None,
    offset: int | None,
    is_all: bool,
    before: int | None,
    file: Path | None,
    dry_run: bool,
    is_sure: bool,
    form: str | None,
    address: str,
) -> None:
    """Delete the records of a topic, or of one partition, below an offset. Asks first on a terminal.

    No reader of the bus sees them from then on; their files go when no Delta version that is kept needs them. Refused
    for a topic whose cleanup.policy is compact alone.
    """
    if (offset is not None) + is_all + (before is not None) + (file is not None) != 1:
        raise click.UsageError("expected one of --offset, --all, --before and --offset-json-file")
    if (target is None) != (file is not None):
        raise click.UsageError("expected TOPIC or TOPIC/PARTITION, or --offset-json-file alone")
    offsets = None if file is None else read_offsets(file)
    chosen = None if target is None else Target(target)
    with open_admin(address) as admin:
        if offsets is None:
            assert chosen is not None, "there is a target where there is no file"
            offsets = _offsets_of(admin, chosen, _ALL if offset is None else offset, before)
        plan = _plan(admin, offsets)
        if dry_run:
            write_listing(_COLUMNS, plan, form)
        else:
            _confirm(plan, is_sure=is_sure)
            plan = _show(_execute(admin, plan), form)
    failed = [f"{one.partition}: {one.error}" for one in plan if one.error is not None]
    if failed:
        raise Failure("; ".join(failed))


# ------------------------------------------------------------------ what is wanted


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """`{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}`, as kafka-delete-records reads it.
    Raises `click.BadParameter`."""
    offsets: dict[TopicPartition, int] = {}
    for item in _items(file):
        match item:
            case {"topic": str(topic), "partition": number, "offset": offset} if (
                type(number) is int and type(offset) is int and offset >= _ALL
            ):
                partition = TopicPartition(topic, number)
            case _:
                raise _bad_file(
                    f"topic, partition and an offset from -1 on, found {format_exact(item)[:200]} in {file}"
                )
        if partition in offsets:
            raise _bad_file(f"each partition once, found {partition} again in {file}")
        offsets[partition] = offset
    if not offsets:
        raise _bad_file(f"partitions in {file}, found none")
    return offsets


def _items(file: Path) -> list[Any]:
    try:
        document = parse_exact(file.read_bytes())
    except ValueError as error:
        raise _bad_file(f"JSON in {file}, found {error}") from None
    match document:
        case {"partitions": list(items)}:
            version = document.get("version", _FILE_VERSION)
        case _:
            raise _bad_file(f'{{"partitions": [...], "version": {_FILE_VERSION}}} in {file}')
    if version != _FILE_VERSION:
        raise _bad_file(f"version {_FILE_VERSION} of {file}, found {version!r}")
    return items


def _bad_file(expected: str) -> click.BadParameter:
    return click.BadParameter(f"expected {expected}", param_hint="--offset-json-file")


def _offsets_of(admin: Admin, target: Target, offset: int, timestamp_ms: int | None) -> dict[TopicPartition, int]:
    """`offset`, or that of the first record at or after `timestamp_ms`; all where there is no such record."""
    scope = {target.topic: () if target.partition is None else (target.partition,)}
    partitions = partitions_in(scope, admin)
    if timestamp_ms is None:
        return dict.fromkeys(partitions, offset)
    found = admin.list_offsets(dict.fromkeys(partitions, timestamp_ms))
    return {one: listed.offset for one, listed in found.items()}  # -1, none is as late: all


# ------------------------------------------------------------------ doing it


def _plan(admin: Admin, offsets: Mapping[TopicPartition, int]) -> list[_Deletion]:
    starts = admin.list_offsets(dict.fromkeys(offsets, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(offsets, LATEST_TIMESTAMP))
    return [_plan_one(one, starts[one].offset, ends[one].offset, offsets[one]) for one in offsets]


def _plan_one(partition: TopicPartition, log_start: int, high_watermark: int, offset: int) -> _Deletion:
    if offset > high_watermark:
        error = f"OFFSET_OUT_OF_RANGE: expected an offset of at most {high_watermark}, found {offset}"
        return _Deletion(partition, log_start, high_watermark, None, error=error)
    wanted = high_watermark if offset == _ALL else offset
    return _Deletion(partition, log_start, high_watermark, max(wanted, log_start))


def _confirm(plan: Iterable[_Deletion], *, is_sure: bool) -> None:
    ranges = {f"{one.partition} from offset {one.log_start}": one.offset_count for one in plan if one.offset_count}
    if ranges:
        shares = ", ".join(f"{count_of(count, 'record')} of {name}" for name, count in ranges.items())
        confirm(f"delete {shares}?", is_sure=is_sure, otherwise="nothing was deleted")


def _execute(admin: Admin, plan: Iterable[_Deletion]) -> Iterator[_Deletion]:
    """A call for each partition, so that each has its own answer."""
    for one in plan:
        if one.low_watermark is None:
            yield one
            continue
        try:
            done = admin.delete_records({one.partition: one.low_watermark})[one.partition]
        except BusError as error:
            if error.code is ErrorCode.NETWORK_EXCEPTION:
                raise  # no broker would answer for the next one either
            yield replace(one, low_watermark=None, error=str(error))
        else:
            yield replace(one, low_watermark=done.low_watermark, version=done.version)


def _show(done: Iterable[_Deletion], form: str | None) -> list[_Deletion]:
    """Show, in a table's place, the lines of Kafka's tool."""
    if resolve_form(form) != "table":
        rows = list(done)
        write_listing(_COLUMNS, rows, form)
        return rows
    echo("Executing records delete operation")
    rows = list(done)
    echo("Records delete operation completed:")
    for one in rows:
        said = f"low_watermark: {one.low_watermark}" if one.error is None else f"error: {one.error}"
        echo(f"partition: {one.partition}\t{said}")
    return rows
