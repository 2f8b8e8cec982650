"""`bus groups`: list, describe, create and delete consumer groups; `reset-offsets` is in group_resets.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusGroup
from bus.cli.failures import Failure
from bus.cli.groups import group_rows as rows
from bus.cli.groups.group_resets import PARTITION_COLUMNS, GroupOffset, reset_offsets, starting_points, target_of
from bus.cli.options import address_option, complete_groups, confirm, listing_format_option, open_admin, yes_option
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.cli.partition_arguments import TOPIC_OPTION, existing, parse_scope, partitions_in
from bus.errors import BusError, count_of
from bus.model import LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.client.admin.offset_targets import OffsetTarget
    from bus.descriptions import GroupDescription, GroupListing

_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead")
_LIST_COLUMNS: Columns[GroupListing] = (
    Column("group", lambda one: one.group_id, is_key=True),
    Column("protocol_type", lambda one: one.protocol_type or None),
    Column("state", lambda one: one.state),
)
_DELETED_COLUMNS: Columns[tuple[TopicPartition, BusError | None]] = (
    Column("topic", lambda row: row[0].topic, is_key=True),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER, is_key=True),
    Column("status", lambda row: f"Error: {row[1]}" if row[1] else "Successful"),
)
_CREATED_COLUMNS: Columns[GroupOffset] = (*PARTITION_COLUMNS, Column("offset", lambda row: row[2], Kind.NUMBER))


@click.group(cls=BusGroup)
def groups() -> None:
    """List, describe, create and delete consumer groups, and set their offsets."""


groups.add_command(reset_offsets)


@groups.command(
    "list",
    examples="""
    bus groups list
    bus groups list --state Stable --state PreparingRebalance
    """,
)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help=f"Only those in this state: {', '.join(_STATES)}; repeatable.",
)
@listing_format_option()
@address_option()
def list_groups(states: tuple[str, ...], form: str | None, address: str) -> None:
    """List the groups. One without a protocol type never had a member, only offsets."""
    with open_admin(address) as admin:
        listed = admin.list_groups(states)
    write_listing(_LIST_COLUMNS, listed, form)


@groups.command(
    examples="""
    bus groups describe billing
    bus groups describe billing --members --verbose
    bus groups describe --all-groups --state --format csv
    """
)
@click.argument("names", metavar="[GROUP...]", nargs=-1, shell_complete=complete_groups)
@click.option("--all-groups", is_flag=True, help="Every group there is.")
@click.option(
    "--offsets", "shown", flag_value="offsets", default=True, show_default=False, help="Offsets and lag (default)."
)
@click.option("--members", "shown", flag_value="members", help="The members.")
@click.option("--state", "shown", flag_value="state", help="State, coordinator and assignor.")
@click.option("--verbose", is_flag=True, help="With --members: what each is given, too.")
@listing_format_option()
@address_option()
def describe(
    names: tuple[str, ...], all_groups: bool, shown: str, verbose: bool, form: str | None, address: str
) -> None:
    """Show offsets and lag of groups, their members or their state.

    The lag is what lies between the group's committed offset and the high watermark. Offsets that are pending in open
    transactions are not shown, but counted, on the standard error.
    """
    if bool(names) == all_groups:
        raise click.UsageError("expected GROUP... or --all-groups")
    if verbose and shown != "members":
        raise click.UsageError("--verbose is for --members")
    with open_admin(address) as admin:
        wanted = [one.group_id for one in admin.list_groups()] if all_groups else names
        described = list(admin.describe_groups(wanted).values())
        offsets = _offset_rows(admin, described) if shown == "offsets" else []
    for group in described:
        warning = rows.state_warning(group)
        if warning is not None:
            echo(warning, err=True)
        if shown == "offsets":
            for note in rows.pending_notes(group):
                echo(note, err=True)
    match shown:
        case "members":
            columns = rows.member_columns(described, verbose=verbose)
            write_listing(columns, [(group, one) for group in described for one in rows.members_of(group)], form)
        case "state":
            write_listing(rows.STATE_COLUMNS, described, form)
        case _:
            write_listing(rows.OFFSET_COLUMNS, offsets, form)


def _offset_rows(admin: Admin, described: list[GroupDescription]) -> list[rows.OffsetRow]:
    committed = admin.list_group_offsets([group.group_id for group in described])
    of_groups = {partition for offsets in committed.values() for partition in offsets}
    owned = {partition for group in described for member in group.members for partition in member.partitions}
    there = existing(of_groups | owned, admin)
    ends = {one: found.offset for one, found in admin.list_offsets(dict.fromkeys(there, LATEST_TIMESTAMP)).items()}
    return [row for group in described for row in rows.offset_rows(group, committed[group.group_id], ends)]


@groups.command(
    examples="""
    bus groups create billing --topic orders --to-latest
    bus groups create billing-2 --to-group billing
    bus groups create audit --topic orders --to-datetime 2013-07-01T12:00
    bus groups create audit --topic orders/0 --to-version 12
    """
)
@click.argument("group", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[/0,1]", help="Where it is to begin; repeatable.")
@starting_points
@listing_format_option()
@address_option()
def create(group: str, topics: tuple[str, ...], form: str | None, address: str, **places: Any) -> None:
    """Give GROUP its first offsets before its first member starts. Refused if there is such a group."""
    target = target_of(places)
    scope = parse_scope(topics, given_as=TOPIC_OPTION)
    if not scope and places["to_group"] is None:
        raise click.UsageError("expected --topic, or --to-group alone")
    with open_admin(address) as admin:
        partitions = partitions_in(scope, admin) if scope else None
        created = admin.create_group(group, partitions, **_starting_point(target))
    write_listing(_CREATED_COLUMNS, [(group, one, offset) for one, offset in created.items()], form)


def _starting_point(target: OffsetTarget) -> dict[str, Any]:
    from bus.client.admin import offset_targets as targets

    match target:
        case targets.ToGroup(group_id):
            return {"offsets_of": group_id}
        case targets.ToTimestamp(timestamp_ms):
            return {"timestamp_ms": timestamp_ms}
        case targets.ToVersion(version):
            return {"at_version": version}
        case _:
            return {"start": "earliest" if isinstance(target, targets.ToEarliest) else "latest"}


@groups.command(
    examples="""
    bus groups delete billing
    bus groups delete billing audit --yes
    """
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@yes_option()
@address_option()
def delete(names: tuple[str, ...], is_sure: bool, address: str) -> None:
    """Delete groups with all their offsets. Asks first on a terminal; refused while a group has members."""
    confirm(f"delete {', '.join(names)} with all offsets?", is_sure=is_sure, otherwise="nothing was deleted")
    with open_admin(address) as admin:
        admin.delete_groups(names)
    for name in names:
        echo(f"deleted group {name}")


@groups.command(
    "delete-offsets",
    examples="""
    bus groups delete-offsets billing --topic orders
    bus groups delete-offsets billing --topic orders/0,1 --topic payments --yes
    """,
)
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="TOPIC[/0,1]", help="Which offsets; repeatable."
)
@yes_option()
@listing_format_option()
@address_option()
def delete_offsets(group: str, topics: tuple[str, ...], is_sure: bool, form: str | None, address: str) -> None:
    """Forget what GROUP has committed of a topic. Asks first on a terminal; refused where a member subscribes."""
    scope = parse_scope(topics, given_as=TOPIC_OPTION)
    confirm(f"delete the offsets of {group} in {', '.join(topics)}?", is_sure=is_sure, otherwise="nothing was deleted")
    with open_admin(address) as admin:
        partitions = partitions_in(scope, admin)
        statuses = {one: _delete_offset(admin, group, one) for one in partitions}
    write_listing(_DELETED_COLUMNS, statuses.items(), form)
    failed = [error for error in statuses.values() if error is not None]
    if failed:
        raise Failure(f"{count_of(len(failed), 'offset')} of {len(statuses)} could not be deleted: {failed[0]}")


def _delete_offset(admin: Admin, group: str, partition: TopicPartition) -> BusError | None:
    try:
        admin.delete_group_offsets(group, [partition])
    except BusError as error:
        if error.retriable:
            raise
        return error
    return None


@groups.command(
    "remove-members",
    examples="""
    bus groups remove-members billing --member bus-consume-6f1e0a4c
    bus groups remove-members billing --instance worker-3
    bus groups remove-members billing --all --yes
    """,
)
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option("--member", "members", multiple=True, metavar="ID", help="A member by its id; repeatable.")
@click.option("--instance", "instances", multiple=True, metavar="ID", help="A static member; repeatable.")
@click.option("--all", "is_all", is_flag=True, help="Every member.")
@yes_option()
@address_option()
def remove_members(
    group: str, members: tuple[str, ...], instances: tuple[str, ...], is_all: bool, is_sure: bool, address: str
) -> None:
    """Put members out of GROUP, so that others take their partitions. One that lives joins again by itself.

    The ids are those of bus groups describe --members. Asks first on a terminal.
    """
    if bool(members or instances) == is_all:
        raise click.UsageError("expected --member, --instance or --all")
    with open_admin(address) as admin:
        if is_all:
            members = tuple(one.member_id for one in admin.describe_groups([group])[group].members)
        count = count_of(len(members) + len(instances), "member")
        if members or instances:
            confirm(f"remove {count} of {group}?", is_sure=is_sure, otherwise="no member was removed")
            admin.remove_members(group, member_ids=members, group_instance_ids=instances)
    echo(f"removed {count} of {group}")
