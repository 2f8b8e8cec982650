"""`bus offsets`: where a topic's partitions begin and end, and where they are at a time."""

from __future__ import annotations

import click

from bus.cli.groups import BusCommand
from bus.cli.options import address_option, choose_partitions, listing_format_option, topic_argument
from bus.cli.output import Column, write_listing
from bus.cli.partition_arguments import parse_scope
from bus.cli.positions import Place, Position, TimeType
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition

_COLUMNS = (
    Column("topic", is_key=True),
    Column("partition", is_number=True, is_key=True),
    Column("offset", is_number=True),
    Column("timestamp", is_time_ms=True),
    Column("leader_epoch", is_number=True),
    Column("version", is_number=True),
)
_TIMESTAMPS = {
    Place.BEGINNING: EARLIEST_TIMESTAMP,
    Place.END: LATEST_TIMESTAMP,
    Place.MAX_TIMESTAMP: MAX_TIMESTAMP,
}


def query_timestamp(position: Position) -> int:
    """What a ListOffsets call asks for to find this place."""
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
    rows = [
        (
            one.topic,
            one.partition,
            found[one].offset,
            found[one].timestamp_ms if found[one].timestamp_ms >= 0 else None,
            found[one].leader_epoch,
            found[one].version,
        )
        for one in wanted
    ]
    write_listing(_COLUMNS, rows, form)
