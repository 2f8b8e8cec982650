"""`bus cluster reassign`: other replicas for partitions, in the JSON of kafka-reassign-partitions.

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}

A plan is decided here and not by the broker. The first replica of a partition is its preferred leader.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import click

from bus.cli.commands import BusGroup
from bus.cli.failures import EXIT_FAILURE, Failure
from bus.cli.options import address_option, complete_topics, open_admin
from bus.cli.output import echo
from bus.cli.partition_arguments import parse_scope, partitions_in
from bus.errors import count_of
from bus.model import TopicPartition
from bus.records.json_text import format_exact, parse_exact

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

Plan = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]  # of the brokers that may get partitions


# ------------------------------------------------------------------ plans


def plan_evenly(current: Mapping[TopicPartition, Sequence[int]], racks: Racks, count: int | None = None) -> Plan:
    """Leaders in turns over the brokers, and followers on other racks than their leader's as far as there are some.
    Each partition keeps its number of replicas, or has one on each broker if there are fewer; or it gets `count`.
    Raises `Failure` if that are more than there are brokers."""
    ring = _in_turns(racks)
    if count is not None and count > len(ring):
        known = ", ".join(map(str, sorted(ring)))
        raise Failure(f"expected {len(ring)} replicas at most, one on each active broker of {known}, found {count}")
    plan: Plan = {}
    for place, partition in enumerate(sorted(current)):
        size = min(count or len(current[partition]), len(ring))
        turn, first = divmod(place, len(ring))
        others = ring[first + 1 :] + ring[:first]
        shift = turn % max(1, len(others))
        plan[partition] = _spread([ring[first], *others[shift:], *others[:shift]], size, racks)
    return plan


def plan_without(current: Mapping[TopicPartition, Sequence[int]], leaving: int, racks: Racks) -> Plan:
    """Those of the partitions that have the broker `leaving` as a replica, with another broker in its place: one of a
    rack that the partition does not have, if there is one, and that has the fewest replicas. `racks` has not `leaving`
    and is not empty."""
    counts = Counter(broker_id for replicas in current.values() for broker_id in replicas)
    first_counts = Counter(replicas[0] for replicas in current.values())
    plan: Plan = {}
    for partition in sorted(current):
        replicas = current[partition]
        if leaving not in replicas:
            continue
        used = {racks.get(one) or one for one in replicas if one != leaving}
        free = [one for one in racks if one not in replicas]
        if free:
            key = first_counts if replicas[0] == leaving else counts
            heir = min(free, key=lambda one: ((racks[one] or one) in used, key[one], counts[one], one))
            planned = [heir if one == leaving else one for one in replicas]
            counts[heir] += 1
        else:
            planned = [one for one in replicas if one != leaving]
            if replicas[0] == leaving:
                planned.sort(key=lambda one: (one not in racks, first_counts[one]))
        if replicas[0] == leaving:
            first_counts[planned[0]] += 1
        plan[partition] = tuple(planned)
    return plan


def _in_turns(racks: Racks) -> list[int]:
    """One broker of each rack, then the second one of each, and so on. A broker without a rack is alone in one."""
    by_rack: dict[object, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id] or broker_id, []).append(broker_id)
    turns = itertools.zip_longest(*by_rack.values())
    return [broker_id for turn in turns for broker_id in turn if broker_id is not None]


def _spread(order: Sequence[int], size: int, racks: Racks) -> tuple[int, ...]:
    """The first one, then the first ones of other racks, then the first ones of the rest."""
    chosen: list[int] = []
    used: set[object] = set()
    for broker_id in order:
        if (racks[broker_id] or broker_id) not in used:
            used.add(racks[broker_id] or broker_id)
            chosen.append(broker_id)
    rest = [broker_id for broker_id in order if broker_id not in chosen]
    return tuple((chosen + rest)[:size])


# ------------------------------------------------------------------ the file


def encode_plan(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(plan[partition]),
            "log_dirs": ["any"] * len(plan[partition]),
        }
        for partition in sorted(plan)
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def decode_plan(text: str) -> Plan:
    """Raises `Failure`."""
    plan: Plan = {}
    for item in _items(text, "partitions"):
        topic, number, replicas = item.get("topic"), item.get("partition"), item.get("replicas")
        if not isinstance(topic, str) or type(number) is not int or not _is_ids(replicas):
            raise Failure(f"expected a topic, a partition and replicas, found {format_exact(item)[:200]}")
        if any(log_dir != "any" for log_dir in item.get("log_dirs", ())):
            raise Failure(f'{topic}-{number}: expected log_dirs of "any": all tables are in the root')
        partition = TopicPartition(topic, number)
        if partition in plan:
            raise Failure(f"expected each partition once, found {partition} again")
        plan[partition] = tuple(replicas)
    return plan


def _decode_topics(text: str) -> list[str]:
    """Read a file as kafka-reassign-partitions --topics-to-move-json-file takes it. Raises `Failure`."""
    names = [item.get("topic") for item in _items(text, "topics")]
    if not all(isinstance(name, str) for name in names):
        raise Failure('expected {"topics": [{"topic": "NAME"}, ...]}, found an entry without a name')
    return [str(name) for name in names]


def _items(text: str, key: str) -> list[dict[str, Any]]:
    try:
        document = parse_exact(text)
    except ValueError as error:
        raise Failure(f"expected JSON, found: {error}") from None
    items = document.get(key) if isinstance(document, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Failure(f'expected {{"version": 1, "{key}": [...]}}, found {text.strip()[:100]!r}')
    if document.get("version", 1) != 1:
        raise Failure(f"expected version 1, found {document['version']!r}")
    return items


def _is_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int for one in value)


# ------------------------------------------------------------------ what commands share


def assigned_replicas(admin: Admin, topics: Sequence[str] | None = None) -> Plan:
    """Ask for the replicas of these topics, or of all, those of the bus included."""
    return {
        TopicPartition(topic.name, partition.partition): partition.replicas
        for topic in admin.describe_topics(topics).values()
        for partition in topic.partitions
    }


def _show_current(current: Mapping[TopicPartition, Sequence[int]], partitions: Collection[TopicPartition]) -> None:
    echo("Current partition replica assignment, to go back to:", err=True)
    echo(encode_plan({one: current[one] for one in partitions if one in current}), err=True)


def _plan_argument() -> Callable[[Any], Any]:
    return click.argument("plan_file", metavar="FILE", type=click.File("r"))


# ------------------------------------------------------------------ commands


@click.group(cls=BusGroup)
def reassign() -> None:
    """Give partitions other replicas: a plan as JSON, and its execution. No data is copied."""


@reassign.command(
    examples="""
    bus cluster reassign generate > plan.json
    bus cluster reassign generate orders payments:0,1 --brokers 0,1,2 > plan.json
    bus cluster reassign generate --topics-to-move-json-file topics.json --replicas 2
    """
)
@click.argument("topics", metavar="[TOPIC[:PARTITION]...]", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--topics-to-move-json-file",
    "topics_file",
    type=click.File("r"),
    help='File of topics, in place of TOPIC...: {"topics": [{"topic": "orders"}]}.',
)
@click.option(
    "--brokers",
    "broker_list",
    metavar="N[,N...]",
    show_default=False,
    help="Brokers that get the partitions.  [default: all that are active]",
)
@click.option(
    "--replicas", type=click.IntRange(min=1), show_default=False, help="Replicas of each partition.  [default: as now]"
)
@address_option()
def generate(
    topics: tuple[str, ...], topics_file: IO[str] | None, broker_list: str | None, replicas: int | None, address: str
) -> None:
    """Write a plan that spreads partitions evenly over brokers and racks; of these topics, or of all.

    The plan goes to standard output, the assignment as it is now to standard error.
    """
    if topics and topics_file is not None:
        raise click.UsageError("expected TOPIC... or --topics-to-move-json-file, found both")
    names = topics if topics_file is None else tuple(_decode_topics(topics_file.read()))
    scope = parse_scope(names, given_as="TOPIC" if topics_file is None else "--topics-to-move-json-file")
    with open_admin(address) as admin:
        partitions = partitions_in(scope, admin) if scope else None
        current = assigned_replicas(admin, list(scope) or None)
        racks = {one.broker_id: one.rack for one in admin.describe_cluster().brokers}
    current = current if partitions is None else {one: current[one] for one in partitions}
    plan = plan_evenly(current, _choose(racks, broker_list), replicas)
    _show_current(current, current)
    echo(encode_plan(plan))


def _choose(racks: dict[int, str | None], broker_list: str | None) -> Racks:
    """Raises `Failure` for a broker that is not active."""
    if broker_list is None:
        return racks
    chosen = {}
    for text in broker_list.split(","):
        if not text.strip().isdecimal() or int(text) not in racks:
            known = ", ".join(map(str, racks))
            raise click.BadParameter(f"expected active brokers, of {known}, found {text!r}", param_hint="--brokers")
        chosen[int(text)] = racks[int(text)]
    return chosen


@reassign.command(
    examples="""
    bus cluster reassign execute plan.json
    bus cluster reassign generate orders | bus cluster reassign execute -
    """
)
@_plan_argument()
@address_option()
def execute(plan_file: IO[str], address: str) -> None:
    """Give each partition of a plan its replicas. They count at once.

    A leader that is no replica any more hands over; one that is goes on, until bus cluster elect-leaders.
    """
    plan = decode_plan(plan_file.read())
    with open_admin(address) as admin:
        _show_current(assigned_replicas(admin), plan)
        admin.alter_partition_reassignments(plan)
    echo(f"{count_of(len(plan), 'partition')} reassigned", err=True)


@reassign.command(
    examples="""
    bus cluster reassign verify plan.json
    """
)
@_plan_argument()
@address_option()
@click.pass_context
def verify(ctx: click.Context, plan_file: IO[str], address: str) -> None:
    """Say whether each partition of a plan has its replicas; exits with 1 if one has not."""
    plan = decode_plan(plan_file.read())
    with open_admin(address) as admin:
        lines = list(_differences(plan, assigned_replicas(admin)))
    for partition, difference in lines:
        told = "is completed" if difference is None else f"is not completed: {difference}"
        echo(f"Reassignment of partition {partition} {told}.")
    if any(difference is not None for _, difference in lines):
        ctx.exit(EXIT_FAILURE)


def _differences(plan: Plan, current: Plan) -> Iterator[tuple[TopicPartition, str | None]]:
    for partition in sorted(plan):
        found = current.get(partition)
        if found == plan[partition]:
            yield partition, None
        elif found is None:
            yield partition, "there is no such partition"
        else:
            yield partition, f"expected replicas {list(plan[partition])}, found {list(found)}"


@reassign.command(
    examples="""
    bus cluster reassign cancel plan.json
    """
)
@_plan_argument()
@address_option()
def cancel(plan_file: IO[str], address: str) -> None:
    """Take back what of a plan is still under way: nothing, since a reassignment counts at once.

    To go back, execute the assignment that generate and execute have shown.
    """
    plan = decode_plan(plan_file.read())
    with open_admin(address) as admin:
        active = admin.list_partition_reassignments().keys() & plan.keys()
        if active:
            admin.alter_partition_reassignments(dict.fromkeys(active))
    echo(f"{count_of(len(active), 'reassignment')} cancelled", err=True)
