"""`bus topics`: create, list, describe, alter and delete topics, and delete records of them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand, BusGroup
from bus.cli.options import (
    address_option,
    choose_partitions,
    complete_topic_configs,
    confirm,
    listing_format_option,
    open_admin,
    parse_pairs,
    topic_argument,
    yes_option,
)
from bus.cli.output import Column, Columns, Kind, echo, echo_styled, resolve_form, styled, write_listing
from bus.cli.partition_arguments import Place, Position, TimeType, parse_scope
from bus.cli.topics.delete_records import delete_records
from bus.client_texts import text_for
from bus.errors import BusError, ErrorCode
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.descriptions import ConfigDescription, ListedOffset, TopicDescription


_TOPIC_COLUMNS: Columns[TopicDescription] = (
    Column("topic", lambda one: one.name, is_key=True),
    Column("partitions", lambda one: len(one.partitions), Kind.NUMBER),
    Column("topic_id", lambda one: one.topic_id),
)
_PARTITION_COLUMNS: Columns[tuple[_Topic, _Partition]] = (
    Column("topic", lambda row: row[0].topic, label="Topic", is_in_heading=True),
    Column("topic_id", lambda row: row[0].topic_id, label="TopicId", is_in_heading=True),
    Column("partition", lambda row: row[1].partition, Kind.NUMBER, "Partition", is_key=True),
    Column("leader", lambda row: row[1].leader, Kind.NUMBER, "Leader"),
    Column("leader_epoch", lambda row: row[1].leader_epoch, Kind.NUMBER, "LeaderEpoch"),
    Column("replicas", lambda row: ",".join(map(str, row[1].replicas)), label="Replicas"),
    Column("isr", lambda row: ",".join(map(str, row[1].isr)), label="Isr"),
    Column("earliest_offset", lambda row: row[1].earliest_offset, Kind.NUMBER, "EarliestOffset"),
    Column("latest_offset", lambda row: row[1].latest_offset, Kind.NUMBER, "LatestOffset"),
    Column("error", lambda row: row[1].error, label="Error", is_optional=True),
)
_CONFIG_COLUMNS: Columns[tuple[str, ConfigDescription]] = (
    Column("topic", lambda row: row[0], is_key=True),
    Column("name", lambda row: row[1].name, is_key=True),
    Column("value", lambda row: row[1].value),
    Column("default", lambda row: row[1].default_value),
    Column("is_default", lambda row: row[1].is_default),
    Column("type", lambda row: row[1].type),
    Column("valid_values", lambda row: row[1].valid_values),
    Column("documentation", lambda row: row[1].documentation),
)


def _configs_option(meaning: str) -> Callable[[Any], Any]:
    return click.option(
        "--config",
        "-c",
        "configs",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_topic_configs,
        help=meaning,
    )


def _assignment_option(meaning: str) -> Callable[[Any], Any]:
    return click.option("--replica-assignment", metavar="ID:ID,ID:ID,...", help=meaning)


@click.group(cls=BusGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, and delete records of them."""


topics.add_command(delete_records)


@topics.command(
    examples="""
    bus topics create orders
    bus topics create orders --partitions 4 --config retention.ms=86400000
    bus topics create orders --partitions 4 --if-not-exists
    bus topics create orders --partitions 4 --replication-factor 2
    bus topics create orders --replica-assignment 0:1,1:2,2:0
    """
)
@topic_argument(is_repeatable=True)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="How many.  [default: num.partitions of the broker]"
)
@_configs_option("A topic config; repeatable.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Brokers of each partition: its leader, and those that take it over.  "
    "[default: default.replication.factor of the broker]",
)
@_assignment_option("The brokers of each partition, the preferred leader first; instead of the two numbers.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing for a topic that exists.")
@click.option("--validate-only", is_flag=True, help="Only say whether it could be created.")
@address_option()
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    replication_factor: int | None,
    replica_assignment: str | None,
    if_not_exists: bool,
    validate_only: bool,
    address: str,
) -> None:
    """Create topics."""
    from bus.client.values import NewTopic

    values = parse_pairs(configs, "--config")
    assignment = _parse_assignment(replica_assignment)
    if assignment and (partitions or replication_factor):
        raise click.UsageError(
            "expected --replica-assignment without --partitions and --replication-factor, found both"
        )
    with open_admin(address) as admin:
        for name in topics:
            try:
                new = NewTopic(name, partitions, values, replication_factor, assignment)
                created = admin.create_topics([new], validate_only=validate_only)
            except BusError as error:
                if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                echo(f"topic {name} exists")
                continue
            if validate_only:
                echo(f"topic {name} could be created")
            else:
                echo(f"created topic {name} ({created[name]})")


def _parse_assignment(text: str | None) -> list[list[int]]:
    """ "0:1,1:2": partition 0 on brokers 0 and 1, partition 1 on 1 and 2."""
    if text is None:
        return []
    try:
        return [[int(broker_id) for broker_id in replicas.split(":")] for replicas in text.split(",")]
    except ValueError:
        message = f"expected broker ids as 0:1,1:2 for two partitions with two replicas, found {text!r}"
        raise click.BadParameter(message, param_hint="'--replica-assignment'") from None


@topics.command(
    "list",
    examples="""
    bus topics list
    bus topics list --internal --format csv
    """,
)
@click.option("--internal", is_flag=True, help="The bus's own topics, too.")
@listing_format_option()
@address_option()
def list_topics(internal: bool, form: str | None, address: str) -> None:
    """List the topics."""
    with open_admin(address) as admin:
        found = admin.describe_topics()
    shown = [topic for topic in found.values() if internal or not topic.is_internal]
    write_listing(_TOPIC_COLUMNS, sorted(shown, key=lambda one: one.name), form)


@topics.command(
    examples="""
    bus topics describe
    bus topics describe orders
    bus topics describe orders --configs
    bus topics describe --under-replicated --unavailable
    bus topics describe --under-min-isr
    """
)
@topic_argument(is_repeatable=True, is_required=False)
@click.option("--configs", is_flag=True, help="Every config: value, default, type, valid values, meaning.")
@click.option(
    *("--under-replicated", "--under-replicated-partitions"),
    is_flag=True,
    help="Only partitions with a replica that is not in sync.",
)
@click.option(
    *("--under-min-isr", "--under-min-isr-partitions"),
    is_flag=True,
    help="Only partitions with fewer replicas in sync than min.insync.replicas.",
)
@click.option("--unavailable", "--unavailable-partitions", is_flag=True, help="Only partitions whose leader is gone.")
@listing_format_option()
@address_option()
def describe(
    topics: tuple[str, ...],
    configs: bool,
    under_replicated: bool,
    under_min_isr: bool,
    unavailable: bool,
    form: str | None,
    address: str,
) -> None:
    """Describe topics, or all of them: id, configs, leaders, replicas, offsets.

    With several of --under-replicated, --under-min-isr and --unavailable: partitions of which any is true. Without a
    topic they are about the bus's own topics, too.
    """
    is_about_trouble = under_replicated or under_min_isr or unavailable
    if configs and is_about_trouble:
        raise click.UsageError(
            "expected --configs without --under-replicated, --under-min-isr and --unavailable, found both"
        )
    with open_admin(address) as admin:
        found = admin.describe_topics(topics or None)
        chosen = [found[name] for name in dict.fromkeys(topics or sorted(found))]
        if is_about_trouble:
            chosen = with_partitions_in_trouble(
                chosen,
                under_replicated=under_replicated,
                unavailable=unavailable,
                isr_min={topic.name: _isr_min(admin, topic.name) for topic in chosen if under_min_isr},
            )
        elif not topics:
            chosen = [topic for topic in chosen if not topic.is_internal]
        if configs:
            _write_configs({topic.name: admin.describe_configs(topic.name) for topic in chosen}, form)
            return
        described = [_describe(admin, topic) for topic in chosen]
    if resolve_form(form) == "table":
        for number, topic in enumerate(described):
            if number:
                echo()
            write_listing(_PARTITION_COLUMNS, topic.rows(), "table", headings=[topic.facts()])
        return
    rows = [row for topic in described for row in topic.rows()]
    write_listing(_PARTITION_COLUMNS, rows, form, documents=map(asdict, described))


def _isr_min(admin: Admin, topic: str) -> int:
    return next(int(entry.value) for entry in admin.describe_configs(topic) if entry.name == "min.insync.replicas")


def with_partitions_in_trouble(
    topics: Sequence[TopicDescription], *, under_replicated: bool, unavailable: bool, isr_min: Mapping[str, int]
) -> list[TopicDescription]:
    """Those of their partitions, and the topics that have such. `isr_min`: by topic, how many replicas have to be in
    sync; a partition with fewer is in trouble."""
    some = [
        replace(
            topic,
            partitions=tuple(
                one
                for one in topic.partitions
                if (under_replicated and one.is_under_replicated)
                or (unavailable and one.is_offline)
                or len(one.isr) < isr_min.get(topic.name, 0)
            ),
        )
        for topic in topics
    ]
    return [topic for topic in some if topic.partitions]


@dataclass(frozen=True, slots=True)
class _Partition:
    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    earliest_offset: int | None  # None of a partition that does not serve
    latest_offset: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class _Topic:
    topic: str
    topic_id: str
    partition_count: int
    replication_factor: int  # of the first partition, as Kafka's tool has it: a reassignment may make them differ
    configs: Mapping[str, str]  # those that are not at their defaults
    partitions: Sequence[_Partition]

    def rows(self) -> list[tuple[_Topic, _Partition]]:
        return [(self, one) for one in self.partitions]

    def facts(self) -> list[str]:
        """The facts in the line with which Kafka's tool begins a topic."""
        return [
            f"Topic: {self.topic}",
            f"TopicId: {self.topic_id}",
            f"PartitionCount: {self.partition_count}",
            f"ReplicationFactor: {self.replication_factor}",
            f"Configs: {','.join(f'{name}={value}' for name, value in self.configs.items())}",
        ]


def _describe(admin: Admin, topic: TopicDescription) -> _Topic:
    serving = [TopicPartition(topic.name, one.partition) for one in topic.partitions if one.error is None]
    earliest = {key.partition: found.offset for key, found in _list(admin, serving, EARLIEST_TIMESTAMP)}
    latest = {key.partition: found.offset for key, found in _list(admin, serving, LATEST_TIMESTAMP)}
    partitions = [
        _Partition(
            one.partition,
            one.leader_id,
            one.leader_epoch,
            one.replicas,
            one.isr,
            earliest.get(one.partition),
            latest.get(one.partition),
            None if one.error is None else str(one.error),
        )
        for one in topic.partitions
    ]
    changed = {entry.name: entry.value for entry in admin.describe_configs(topic.name) if not entry.is_default}
    factor = len(partitions[0].replicas) if partitions else 0
    return _Topic(topic.name, topic.topic_id, len(partitions), factor, changed, partitions)


def _list(admin: Admin, partitions: Sequence[TopicPartition], at: int) -> list[tuple[TopicPartition, ListedOffset]]:
    return list(admin.list_offsets(dict.fromkeys(partitions, at)).items())


def _write_configs(configs: Mapping[str, Sequence[ConfigDescription]], form: str | None) -> None:
    if resolve_form(form) == "table":
        for number, (topic, entries) in enumerate(configs.items()):
            echo("\n" * bool(number) + f"Configs of topic {topic}:")
            for entry in entries:
                write_config(entry)
        return
    rows = [(topic, entry) for topic, entries in configs.items() for entry in entries]
    write_listing(_CONFIG_COLUMNS, rows, form)


def write_config(entry: ConfigDescription) -> None:
    """The value, what else it could be, and below it the meaning; what was set for the topic stands out."""
    limits = f", {entry.valid_values}" if entry.valid_values else ""
    default = "" if entry.is_default else f", default {entry.default_value}"
    value = styled(text_for(sys.stdout, f"{entry.name}={entry.value}"), sys.stdout, bold=not entry.is_default)
    echo_styled(f"  {value}  {text_for(sys.stdout, f'({entry.type}{limits}{default})')}")
    width = shutil.get_terminal_size((100, 24)).columns
    echo(textwrap.fill(entry.documentation, width, initial_indent=" " * 6, subsequent_indent=" " * 6))


@topics.command(
    examples="""
    bus topics alter orders --partitions 8
    bus topics alter orders --partitions 10 --replica-assignment 0:1,2:0
    bus topics alter orders --config retention.ms=3600000 --delete-config compression.type
    """
)
@topic_argument()
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The new total; a topic can only grow.")
@_assignment_option("The brokers of each partition that is added, the preferred leader first.")
@_configs_option("Set a config; repeatable.")
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    shell_complete=complete_topic_configs,
    help="Back to its default; repeatable.",
)
@click.option("--validate-only", is_flag=True, help="Only say whether it could be done.")
@address_option()
def alter(
    topic: str,
    partitions: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    validate_only: bool,
    address: str,
) -> None:
    """Give a topic more partitions or other configs."""
    changes = parse_pairs(configs, "--config")
    assignment = _parse_assignment(replica_assignment)
    if assignment and partitions is None:
        raise click.UsageError("expected --partitions, the new total, beside --replica-assignment, found it alone")
    if partitions is None and not changes and not deleted:
        raise click.UsageError("expected --partitions, --config or --delete-config, found none of them")
    done = "could be" if validate_only else "are"
    with open_admin(address) as admin:
        if changes or deleted:
            admin.alter_configs(topic, changes, delete=deleted, validate_only=validate_only)
            echo(f"configs of topic {topic} {done} changed")
        if partitions is not None:
            assigned = {topic: assignment} if assignment else None
            admin.create_partitions({topic: partitions}, validate_only, replica_assignment=assigned)
            echo(f"partitions of topic {topic} {done} {partitions}")


@topics.command(
    examples="""
    bus topics delete orders
    bus topics delete orders payments --yes
    """
)
@topic_argument(is_repeatable=True)
@yes_option()
@click.option("--if-exists", is_flag=True, help="Do nothing for a topic that does not exist.")
@address_option()
def delete(topics: tuple[str, ...], is_sure: bool, if_exists: bool, address: str) -> None:
    """Delete topics with all their records. Asks first on a terminal."""
    names = ", ".join(topics)
    confirm(f"delete {names} with all records?", is_sure=is_sure, otherwise="nothing was deleted")
    with open_admin(address) as admin:
        for name in topics:
            try:
                admin.delete_topics([name])
            except BusError as error:
                if not (if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise
                echo(f"topic {name} does not exist")
                continue
            echo(f"deleted topic {name}")


# `bus offsets`: where a topic's partitions begin and end, and where they are at a time.

_COLUMNS: Columns[tuple[TopicPartition, ListedOffset]] = (
    Column("topic", lambda row: row[0].topic, is_key=True),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER, is_key=True),
    Column("offset", lambda row: row[1].offset, Kind.NUMBER),
    Column("timestamp", lambda row: row[1].timestamp_ms if row[1].timestamp_ms >= 0 else None, Kind.TIME_MS),
    Column("leader_epoch", lambda row: row[1].leader_epoch, Kind.NUMBER),
    Column("version", lambda row: row[1].version, Kind.NUMBER),
)
_TIMESTAMPS = {
    Place.BEGINNING: EARLIEST_TIMESTAMP,
    Place.END: LATEST_TIMESTAMP,
    Place.MAX_TIMESTAMP: MAX_TIMESTAMP,
}


def query_timestamp(position: Position) -> int:
    """Return what a ListOffsets call asks for to find this place."""
    return position.number if position.place is Place.TIMESTAMP else _TIMESTAMPS[position.place]


@click.command(
    cls=BusCommand,
    examples="""
    bus offsets orders
    bus offsets orders/0 --time earliest
    bus offsets orders --time 2013-07-01T12:00 --format csv
    """,
)
@topic_argument(is_repeatable=True)
@click.option("--partition", "-p", "partitions", type=int, multiple=True, help="Only this one; repeatable.")
@click.option(
    "--time",
    "-t",
    "position",
    type=TimeType(),
    default="latest",
    metavar="WHEN",
    help="earliest, latest, max (the largest timestamp), a time in ISO 8601 (UTC), @MILLISECONDS or @-1h.",
)
@listing_format_option()
@address_option()
def offsets(
    topics: tuple[str, ...], partitions: tuple[int, ...], position: Position, form: str | None, address: str
) -> None:
    """Show the offset of each partition at a time: the first record at or after it, -1 if there is none.

    latest is the high watermark: one past the last committed record, at the Delta version that is shown with it. The
    leader epoch is that of the leader that answers; of an offset found by time, that under which it was appended.
    """
    from bus.client.admin.admin import Admin

    named = parse_scope(topics, partitions=partitions)
    with Admin(address) as admin:
        described = admin.describe_topics(list(named))
        wanted = {
            TopicPartition(topic, number): query_timestamp(position)
            for topic, chosen in named.items()
            for number in choose_partitions(topic, chosen, [one.partition for one in described[topic].partitions])
        }
        found = admin.list_offsets(wanted)
    write_listing(_COLUMNS, [(one, found[one]) for one in wanted], form)
