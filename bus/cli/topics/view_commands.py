"""`bus views`: JSON values of a topic as typed columns, under a name that SQL knows in every session and engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusGroup
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, Columns, echo, write_listing
from bus.json_views import ENVELOPE_COLUMNS, JsonView, SchemaError, format_ddl, format_type, infer_fields
from bus.model import TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

_POLL_MS = 500
_VIEW_COLUMNS: Columns[JsonView] = (
    Column("name", lambda one: one.name, is_key=True),
    Column("topic", lambda one: one.topic, is_key=True),
    Column("columns", lambda one: ",".join(one.columns)),
    Column("schema", lambda one: one.schema),
)
_FIELD_COLUMNS: Columns[tuple[JsonView, str, str]] = (
    Column("view", lambda row: row[0].name, is_key=True),
    Column("topic", lambda row: row[0].topic, is_key=True),
    Column("column", lambda row: row[1], is_key=True),
    Column("type", lambda row: row[2]),
)
_OF_THE_RECORD = "of the record"


@click.group(cls=BusGroup)
def views() -> None:
    """Views of JSON values as typed columns: create, list, describe and delete them."""


@views.command(
    examples="""
    bus views create delays flights --schema "carrier STRING, dep_delay INT"
    bus views create delays flights --columns partition,offset,key
    bus views create delays flights --replace --validate-only
    bus sql "SELECT carrier, avg(dep_delay) FROM delays GROUP BY 1"
    """
)
@click.argument("name")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--schema", metavar="DDL", help="The columns: NAME TYPE, ...  [default: inferred from a sample]")
@click.option(
    "--sample", type=click.IntRange(min=1), default=1_000, help="How many of the last records are looked at for them."
)
@click.option(
    "--columns",
    metavar="NAME,...",
    help=f"Of the records, beside those of the values: {', '.join(ENVELOPE_COLUMNS)}; '' for none.  "
    "[default: partition, offset, timestamp, key, _corrupt]",
)
@click.option("--replace", is_flag=True, help="In place of a view of that name.")
@click.option("--validate-only", is_flag=True, help="Only say what it would be.")
@address_option()
def create(
    name: str,
    topic: str,
    schema: str | None,
    sample: int,
    columns: str | None,
    replace: bool,
    validate_only: bool,
    address: str,
) -> None:
    """Create a view NAME of the values of TOPIC.

    Without --schema the columns are those that the sample has: what is not of one type everywhere is text. A value that
    is no JSON object has nulls in them, and is in the column _corrupt.
    """
    with open_admin(address) as admin:
        ddl = schema if schema is not None else _infer(admin, address, topic, sample)
        chosen = None if columns is None else [column.strip() for column in columns.split(",") if column.strip()]
        view = admin.create_view(name, topic, ddl, chosen, replace=replace, validate_only=validate_only)
    outcome = f"view {view.name} could be created" if validate_only else f"created view {view.name}"
    echo(f"{outcome}: {view.schema}")


@views.command("list", examples="bus views list")
@listing_format_option()
@address_option()
def list_views(form: str | None, address: str) -> None:
    """List the views."""
    with open_admin(address) as admin:
        found = admin.list_views()
    write_listing(_VIEW_COLUMNS, found, form)


@views.command(
    examples="""
    bus views describe delays
    bus views describe --format json
    """
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@listing_format_option()
@address_option()
def describe(names: tuple[str, ...], form: str | None, address: str) -> None:
    """Show the columns of views, or of all of them, in their order."""
    with open_admin(address) as admin:
        found = {view.name.casefold(): view for view in admin.list_views()}
    for name in names:
        if name.casefold() not in found:
            known = ", ".join(view.name for view in found.values()) or "none yet"
            raise Failure(f"expected a view, found none named {name!r}; views there: {known}")
    chosen = [found[name.casefold()] for name in names] or list(found.values())
    rows = [row for view in chosen for row in _columns_of(view)]
    write_listing(_FIELD_COLUMNS, rows, form, documents=map(asdict, chosen))


@views.command(examples="bus views delete delays")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@address_option()
def delete(names: tuple[str, ...], address: str) -> None:
    """Delete views; their topics stay as they are."""
    with open_admin(address) as admin:
        for name in names:
            admin.delete_view(name)
            echo(f"deleted view {name}")


def _columns_of(view: JsonView) -> Iterator[tuple[JsonView, str, str]]:
    before = [column for column in view.columns if column != "_corrupt"]
    after = [column for column in view.columns if column == "_corrupt"]
    yield from ((view, column, _OF_THE_RECORD) for column in before)
    yield from ((view, field.name, format_type(field.type)) for field in view.fields)
    yield from ((view, column, _OF_THE_RECORD) for column in after)


def _infer(admin: Admin, address: str, topic: str, count: int) -> str:
    """Raises `Failure` if the sample has no columns."""
    partitions = [TopicPartition(topic, one.partition) for one in admin.describe_topics([topic])[topic].partitions]
    try:
        return format_ddl(infer_fields(_last_values(address, partitions, count)))
    except SchemaError as error:
        raise Failure(f"the last records of {topic}: {error}; --schema says the columns") from None


def _last_values(address: str, partitions: list[TopicPartition], count: int) -> Iterator[bytes]:
    """Read the last ones, in each partition, of the records that are there now."""
    from bus.client.consumer.consumer import Consumer

    each = -(-count // len(partitions))
    with Consumer(address) as consumer:
        begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        waiting = [one for one in partitions if ends[one] > begins[one]]
        consumer.assign(waiting)
        for one in waiting:
            consumer.seek(one, max(begins[one], ends[one] - each))
        while waiting:
            for record in consumer.poll(_POLL_MS):
                if record.value is not None:
                    yield record.value
            waiting = [one for one in waiting if consumer.position(one) < ends[one]]
            consumer.pause([one for one in consumer.assignment() if one not in waiting])
