"""`bus cluster`: a cluster of brokers on one root."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bus.cli.cluster.cluster_processes import (
    LocalCluster,
    down,
    kill,
    pause,
    restart,
    resume,
    timeout_option,
    up,
    wait_until,
)
from bus.cli.cluster.cluster_reassign import assigned_replicas, plan_without, reassign
from bus.cli.commands import BusGroup
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.cli.partition_arguments import parse_scope, partitions_in
from bus.errors import BusError, ErrorCode, count_of
from bus.model import RunningBroker, TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.descriptions import BrokerDescription, ClusterDescription

_FEATURE = "bus.version"
_RETRY_S = 0.2

_Broker = tuple["ClusterDescription", "BrokerDescription"]  # and where it is
_BROKER_COLUMNS: Columns[_Broker] = (
    Column("broker", lambda row: row[1].broker_id, Kind.NUMBER, is_key=True),
    Column("host", lambda row: row[1].host),
    Column("port", lambda row: row[1].port, Kind.NUMBER),
    Column("rack", lambda row: row[1].rack),
    Column("role", lambda row: "controller" if row[1].broker_id == row[0].controller_id else "broker"),
    Column("state", lambda row: "fenced" if row[1].is_fenced else "active"),
    Column("leaders", lambda row: row[1].leader_count, Kind.NUMBER),
    Column("replicas", lambda row: row[1].replica_count, Kind.NUMBER),
)
_LIFE_COLUMNS: Columns[_Broker] = (
    Column("broker_epoch", lambda row: row[1].broker_epoch, Kind.NUMBER),
    Column("incarnation", lambda row: row[1].incarnation_id),
    Column("feature_level_min", lambda row: row[1].feature_levels[0], Kind.NUMBER),
    Column("feature_level_max", lambda row: row[1].feature_levels[1], Kind.NUMBER),
)
_LEADER_COLUMNS: Columns[tuple[TopicPartition, int]] = (
    Column("topic", lambda row: row[0].topic, is_key=True),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER, is_key=True),
    Column("leader", lambda row: row[1], Kind.NUMBER),
)
_FEATURE_COLUMNS: Columns[ClusterDescription] = (
    Column("feature", lambda _: _FEATURE, label="Feature", is_key=True),
    Column("supported_min", lambda found: _supported(found)[0], Kind.NUMBER, "SupportedMinVersion"),
    Column("supported_max", lambda found: _supported(found)[1], Kind.NUMBER, "SupportedMaxVersion"),
    Column("finalized", lambda found: found.feature_level, Kind.NUMBER, "FinalizedVersionLevel"),
)


@click.group(cls=BusGroup)
def cluster() -> None:
    """Start, stop, inspect and change a cluster of brokers on one root."""


for _command in (up, down, restart, kill, pause, resume, reassign):
    cluster.add_command(_command)


# ------------------------------------------------------------------ what there is


@cluster.command(
    examples="""
    bus cluster describe
    bus cluster describe --format json
    """
)
@listing_format_option()
@address_option()
def describe(form: str | None, address: str) -> None:
    """Describe the cluster: its controller, the level of its features, its brokers and what they lead, and how many
    partitions lack a replica or a leader."""
    with open_admin(address) as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
    facts = [
        f"ClusterId: {found.cluster_id}",
        f"Root: {found.root_url}",
        f"Controller: {found.controller_id}",
        f"ControllerEpoch: {found.controller_epoch}",
        f"FeatureLevel: {found.feature_level}",
        f"UnderReplicatedPartitions: {found.under_replicated_partitions}",
        f"OfflinePartitions: {found.offline_partitions}",
    ]
    write_listing(_BROKER_COLUMNS, _rows(found), form, headings=[facts], documents=[asdict(found)])


@cluster.command(
    examples="""
    bus cluster brokers
    bus cluster brokers --format csv
    """
)
@listing_format_option()
@address_option()
def brokers(form: str | None, address: str) -> None:
    """List the brokers with all that is known of each, fenced ones too."""
    with open_admin(address) as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
    write_listing((*_BROKER_COLUMNS, *_LIFE_COLUMNS), _rows(found), form)


def _rows(found: ClusterDescription) -> list[_Broker]:
    return [(found, one) for one in found.brokers]


# ------------------------------------------------------------------ leaders


@cluster.command(
    "elect-leaders",
    examples="""
    bus cluster elect-leaders
    bus cluster elect-leaders orders payments:0,2
    """,
)
@click.argument("topics", metavar="[TOPIC[:PARTITION]...]", nargs=-1, shell_complete=complete_topics)
@listing_format_option()
@address_option()
def elect_leaders(topics: tuple[str, ...], form: str | None, address: str) -> None:
    """Let the preferred leader, the first replica, lead each partition; of these topics, or of all.

    Lists the partitions whose leader has changed.
    """
    scope = parse_scope(topics)
    with open_admin(address) as admin:
        elected = admin.elect_leaders(partitions_in(scope, admin) if topics else None)
    write_listing(_LEADER_COLUMNS, sorted(elected.items()), form)
    echo(f"{count_of(len(elected), 'leader')} changed", err=True)


# ------------------------------------------------------------------ brokers that leave


@cluster.command(
    examples="""
    bus cluster decommission 2
    """
)
@click.argument("broker_id", metavar="BROKER", type=click.IntRange(min=0))
@timeout_option("How long to wait until the broker has ended and left.")
@address_option()
def decommission(broker_id: int, timeout_s: float, address: str) -> None:
    """Take a broker out of the cluster for good.

    Other brokers get what it leads and follows. Then the broker is stopped if it runs on this machine; one that runs
    elsewhere has to be stopped there, the command waits for it. At last it is unregistered.
    """
    with open_admin(address) as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
        broker = _find_broker(found.brokers, broker_id)
        _move_off(admin, broker_id)
        if not broker.is_fenced:
            running = _local_process(found.root_url, broker_id)
            if running is not None:
                LocalCluster(Path(found.root_url)).stop(broker_id, timeout_s)
                echo(f"broker {broker_id}: stopped (pid {running.pid})", err=True)
            else:
                echo(f"broker {broker_id} does not run on this machine: stop it there", err=True)
            wait_until(
                lambda: _has_ended(admin, broker_id),
                timeout_s,
                f"broker {broker_id} has not ended within {timeout_s:g} s; it leads and follows nothing. "
                "Stop it, then repeat this command",
            )
        _unregister(admin, broker_id, timeout_s)
    LocalCluster(Path(found.root_url)).forget_launch_options(broker_id)
    echo(f"broker {broker_id}: unregistered", err=True)


def _find_broker(brokers: Collection[BrokerDescription], broker_id: int) -> BrokerDescription:
    found = {one.broker_id: one for one in brokers}
    if broker_id not in found:
        known = ", ".join(map(str, found))
        raise Failure(f"expected a broker of the cluster, {known}, found {broker_id}")
    if not any(one.broker_id != broker_id and not one.is_fenced for one in brokers):
        raise Failure(f"broker {broker_id} cannot leave: no other broker is active that could take over")
    return found[broker_id]


def _move_off(admin: Admin, broker_id: int) -> None:
    brokers = [one for one in admin.describe_cluster().brokers if one.broker_id != broker_id]
    plan = plan_without(assigned_replicas(admin), broker_id, {one.broker_id: one.rack for one in brokers})
    if plan:
        admin.alter_partition_reassignments(plan)
        echo(f"broker {broker_id}: other brokers have {count_of(len(plan), 'partition')} of it now", err=True)


def _local_process(root_url: str, broker_id: int) -> RunningBroker | None:
    with suppress(Failure):
        return LocalCluster(Path(root_url)).find(broker_id)
    return None


def _has_ended(admin: Admin, broker_id: int) -> bool:
    found = admin.describe_cluster()
    return found.controller_id != broker_id and all(one.broker_id != broker_id for one in found.brokers)


def _unregister(admin: Admin, broker_id: int, timeout_s: float) -> None:
    """A topic that was created meanwhile may have given it partitions again."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            admin.unregister_broker(broker_id)
            return
        except BusError as error:
            if error.code is not ErrorCode.INVALID_REQUEST or time.monotonic() > deadline_s:
                raise
        time.sleep(_RETRY_S)
        _move_off(admin, broker_id)


# ------------------------------------------------------------------ features


@cluster.group(cls=BusGroup)
def features() -> None:
    """Show and finalize the level of the cluster's features."""


@features.command(
    "describe",
    examples="""
    bus cluster features describe
    """,
)
@listing_format_option()
@address_option()
def describe_features(form: str | None, address: str) -> None:
    """Show the levels at which all brokers can work, and the one that is finalized."""
    with open_admin(address) as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
    write_listing(_FEATURE_COLUMNS, [found], form)


@features.command(
    examples="""
    bus cluster features upgrade
    bus cluster features upgrade --level 1 --dry-run
    """
)
@click.option(
    "--level",
    type=click.IntRange(min=0),
    show_default=False,
    help="Level of bus.version.  [default: the highest at which all brokers can work]",
)
@click.option("--dry-run", is_flag=True, help="Only say whether it could be done.")
@address_option()
def upgrade(level: int | None, dry_run: bool, address: str) -> None:
    """Finalize a level, after all brokers run the new version. There is no way back to an earlier one."""
    with open_admin(address) as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
        wanted = max(_supported(found)[1], found.feature_level) if level is None else level
        admin.update_features({_FEATURE: wanted}, validate_only=dry_run)
    done = "is" if wanted == found.feature_level else "could be" if dry_run else "was"
    echo(f"{_FEATURE} {done} finalized at level {wanted}", err=True)


def _supported(found: ClusterDescription) -> tuple[int, int]:
    lowest, highest = zip(*(one.feature_levels for one in found.brokers), strict=True)
    return max(lowest), min(highest)
