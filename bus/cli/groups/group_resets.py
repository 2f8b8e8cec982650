"""`bus groups reset-offsets`: say where a group goes on, for all its partitions at once; `--to-earliest`,
`--to-datetime 2013-07-01T12:00`, `--to-version 12` and the other options that say where.

Guards two promises: nothing changes without `--execute`, and offsets of a group with members are left alone, since a
member would go on where it is and commit over them. The options have the names and meaning of Kafka's command where it
has them; a group at a Delta version, and at another group's offsets, are the bus's own.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_groups, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.cli.partition_arguments import (
    TOPIC_OPTION,
    Scope,
    TimestampType,
    existing,
    parse_scope,
    partitions_in,
    scope_of,
)
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.client.admin.offset_targets import OffsetTarget, PlannedOffset

_STARTS = (
    click.option("--to-earliest", is_flag=True, help="The first record that is there."),
    click.option("--to-latest", is_flag=True, help="The end: new records alone."),
    click.option(
        "--to-datetime",
        type=TimestampType(),
        metavar="TIME",
        help="The first record from then on; ISO 8601 (UTC).",
    ),
    click.option("--to-version", multiple=True, metavar="N", help="The end at a Delta version: N, TOPIC=N, TOPIC/0=N."),
    click.option("--to-group", metavar="OTHER", shell_complete=complete_groups, help="What another group committed."),
)
_MOVES = (
    click.option("--to-current", is_flag=True, help="What is committed; with --export, to keep it."),
    click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="This very offset."),
    click.option("--shift-by", type=int, metavar="N", help="N records on from what is committed; negative: back."),
    click.option(
        "--by-duration", metavar="PT1H", help="The first record of the last hour, day, ...: an ISO 8601 duration."
    ),
    click.option(
        "--from-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="CSV",
        help="topic,partition,offset a line, as --export writes it.",
    ),
)


def starting_points(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for a group that has no offsets yet."""
    return _with(command, _STARTS)


def all_targets(command: Callable[..., Any]) -> Callable[..., Any]:
    return _with(command, _STARTS + _MOVES)


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def target_of(places: Mapping[str, Any]) -> OffsetTarget:
    """From the values of the options by their names. Raises `click.UsageError` unless it is exactly one."""
    from bus.client.admin import offset_targets as targets

    given = {name: value for name, value in places.items() if value is not None and value is not False and value != ()}
    if len(given) != 1:
        known = ", ".join(f"--{name.replace('_', '-')}" for name in places)
        raise click.UsageError(f"expected one of {known}, found {len(given) or 'none'}")
    ((name, value),) = given.items()
    match name:
        case "to_earliest":
            return targets.ToEarliest()
        case "to_latest":
            return targets.ToLatest()
        case "to_current":
            return targets.ToCurrent()
        case "to_offset":
            return targets.ToOffset(value)
        case "shift_by":
            return targets.ShiftBy(value)
        case "to_datetime":
            return targets.ToTimestamp(value)
        case "by_duration":
            return targets.ToTimestamp(time.time_ns() // 1_000_000 - _duration(value))
        case "to_version":
            return targets.ToVersion(_versions(value))
        case "to_group":
            return targets.ToGroup(value)
        case _:
            return targets.ToGiven(read_offsets(value))


def _duration(text: str) -> int:
    from bus.client.config.values import duration_ms

    found = duration_ms(text)
    if found is None:
        raise click.BadParameter(f"expected a duration like P1DT2H30M, found {text!r}", param_hint="--by-duration")
    return found


def _versions(texts: tuple[str, ...]) -> Any:
    from bus.tables.point_in_time import parse_bound

    try:
        return parse_bound(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to-version") from None


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """Lines of topic,partition,offset. Raises `click.BadParameter` that names the line."""
    offsets: dict[TopicPartition, int] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        for number, cells in enumerate(csv.reader(stream), start=1):
            if not cells:
                continue
            if len(cells) != 3 or not (cells[1].strip().isdecimal() and cells[2].strip().isdecimal()):
                raise click.BadParameter(
                    f"expected topic,partition,offset in line {number} of {file}, found {','.join(cells)!r}",
                    param_hint="--from-file",
                )
            partition = TopicPartition(cells[0].strip(), int(cells[1]))
            if partition in offsets:
                raise click.BadParameter(
                    f"expected each partition once, found {partition} again in line {number} of {file}",
                    param_hint="--from-file",
                )
            offsets[partition] = int(cells[2])
    if not offsets:
        raise click.BadParameter(f"expected topic,partition,offset in {file}, found no line", param_hint="--from-file")
    return offsets


GroupOffset = tuple[str, TopicPartition, int]  # and the group
PARTITION_COLUMNS: Columns[GroupOffset] = (
    Column("group", lambda row: row[0], is_key=True),
    Column("topic", lambda row: row[1].topic, is_key=True),
    Column("partition", lambda row: row[1].partition, Kind.NUMBER, is_key=True),
)
_COLUMNS: Columns[GroupOffset] = (*PARTITION_COLUMNS, Column("new_offset", lambda row: row[2], Kind.NUMBER))
_MEMBERS_SHOWN_MAX = 5


@click.command(
    "reset-offsets",
    cls=BusCommand,
    examples="""
    bus groups reset-offsets billing --topic orders --to-earliest
    bus groups reset-offsets billing --topic orders/0,1 --shift-by -100 --execute
    bus groups reset-offsets billing --all-topics --by-duration PT1H --execute
    bus groups reset-offsets billing --all-topics --to-current --export > offsets.csv
    bus groups reset-offsets billing --from-file offsets.csv --execute
    bus groups reset-offsets billing --topic orders --to-version 12 --execute
    """,
)
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[/0,1]", help="Which partitions; repeatable.")
@click.option("--all-topics", is_flag=True, help="All partitions of which it has committed an offset.")
@all_targets
@click.option("--execute", is_flag=True, help="Do it; without this the offsets are only shown.")
@click.option("--dry-run", is_flag=True, help="Only show them, as without --execute.")
@click.option("--export", is_flag=True, help="Print topic,partition,offset a line, for --from-file.")
@listing_format_option()
@address_option()
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    export: bool,
    form: str | None,
    address: str,
    **places: Any,
) -> None:
    """Set the offsets of GROUP: what its members will read next. Shows them, and sets them with --execute.

    The group must have no members. An offset before the beginning or behind the end of a partition is brought there.
    """
    from bus.client.admin.offset_targets import plan_offsets

    if execute and dry_run:
        raise click.UsageError("expected --execute or --dry-run, found both")
    if export and form is not None:
        raise click.UsageError("expected --export or --format, found both")
    target = target_of(places)
    scope = parse_scope(topics, given_as=TOPIC_OPTION)
    _check_scope(scope, all_topics, target)
    with open_admin(address) as admin:
        _check_inactive(admin, group)
        partitions = _partitions(admin, group, scope, all_topics, target)
        planned = plan_offsets(admin, group, partitions, target)
        _show_plan(planned, partitions)
        if execute:
            admin.alter_group_offsets(group, {one: plan.offset for one, plan in planned.items()})
    if export:
        for one, plan in planned.items():
            echo(f"{one.topic},{one.partition},{plan.offset}")  # a topic's name needs no quotes
    else:
        write_listing(_COLUMNS, [(group, one, plan.offset) for one, plan in planned.items()], form)
    if not execute and not (dry_run or export):
        echo("nothing was changed; to set these offsets, add --execute", err=True)


def _check_inactive(admin: Admin, group: str) -> None:
    """A group that is not there may be reset: its offsets make it."""
    try:
        described = admin.describe_groups([group])[group]
    except BusError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if described.is_active:
        members = [f"{one.member_id} ({one.client_host})" for one in described.members]
        more = f" and {len(members) - _MEMBERS_SHOWN_MAX} more" if len(members) > _MEMBERS_SHOWN_MAX else ""
        raise Failure(
            f"expected group {group} to be inactive, found it {described.state} with "
            f"{', '.join(members[:_MEMBERS_SHOWN_MAX]) or 'members that are joining'}{more}; stop them first"
        )


def _check_scope(scope: Scope, all_topics: bool, target: OffsetTarget) -> None:
    """Raises `click.UsageError` unless it is clear which partitions are meant."""
    from bus.client.admin.offset_targets import ToGiven, ToGroup

    if isinstance(target, ToGiven):
        if scope or all_topics:
            raise click.UsageError("expected no --topic and no --all-topics: the partitions are those of --from-file")
    elif scope and all_topics:
        raise click.UsageError("expected --topic or --all-topics, found both")
    elif not scope and not all_topics and not isinstance(target, ToGroup):
        raise click.UsageError("expected --topic or --all-topics")


def _partitions(admin: Admin, group: str, scope: Scope, all_topics: bool, target: OffsetTarget) -> list[TopicPartition]:
    from bus.client.admin.offset_targets import ToGiven, ToGroup

    if isinstance(target, ToGiven):
        scope = scope_of(target.offsets)
    if scope:
        return partitions_in(scope, admin)
    source = target.group_id if isinstance(target, ToGroup) and not all_topics else group
    found = existing(admin.list_group_offsets(source), admin)
    if not found:
        raise Failure(f"expected committed offsets of group {source}, found none; name the partitions with --topic")
    return found


def _show_plan(planned: Mapping[TopicPartition, PlannedOffset], partitions: Sequence[TopicPartition]) -> None:
    """Warn of what is not as it was asked for."""
    for one in partitions:
        if one not in planned:
            echo(f"warning: {one}: nothing says where; its offset stays as it is", err=True)
        elif (warning := planned[one].warning) is not None:
            echo(f"warning: {warning}; {planned[one].offset} is taken", err=True)
