"""`bus config` and `bus brokers`: which brokers there are, and every setting with where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_broker_configs, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, resolve_form, write_listing
from bus.cli.topics.topic_commands import write_config

if TYPE_CHECKING:
    from bus.descriptions import BrokerDescription, ClusterDescription, ConfigDescription

_BROKER_COLUMNS: Columns[tuple[ClusterDescription, BrokerDescription]] = (
    Column("broker", lambda row: row[1].broker_id, Kind.NUMBER, is_key=True),
    Column("host", lambda row: row[1].host),
    Column("port", lambda row: row[1].port, Kind.NUMBER),
    Column("role", lambda row: "controller" if row[1].broker_id == row[0].controller_id else "broker"),
)
_COLUMNS: Columns[tuple[str | None, ConfigDescription]] = (  # of which topic; None: of the broker
    Column("name", lambda row: row[1].name, is_key=True),
    Column("value", lambda row: row[1].value),
    Column("default", lambda row: row[1].default_value),
    Column("source", lambda row: _source(row[1], row[0])),
    Column("type", lambda row: row[1].type),
    Column("valid_values", lambda row: row[1].valid_values),
    Column("documentation", lambda row: row[1].documentation),
)


@click.command(
    cls=BusCommand,
    examples="""
    bus config
    bus config --changed
    bus config commit.interval.ms log.retention.ms
    bus config --topic orders retention.ms
    bus config --format csv
    """,
)
@click.argument("keys", metavar="[KEY...]", nargs=-1, shell_complete=complete_broker_configs)
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="The settings of a topic.")
@click.option("--changed", is_flag=True, help="Only those that are not as they are by default.")
@listing_format_option()
@address_option()
def config(keys: tuple[str, ...], topic: str | None, changed: bool, form: str | None, address: str) -> None:
    """Show the settings of the broker, or of a topic: value, default, where the value comes from, and meaning.

    To set them: bus serve --set or its file, and bus topics alter --config.
    """
    with open_admin(address) as admin:
        entries = admin.describe_configs(topic or "", "broker" if topic is None else "topic")
    _check_keys(keys, entries)
    entries = [one for one in entries if (not keys or one.name in keys) and not (changed and one.is_default)]
    if resolve_form(form) == "table":
        for entry in entries:
            write_config(entry)
        return
    write_listing(_COLUMNS, [(topic, entry) for entry in entries], form)


def _source(entry: ConfigDescription, topic: str | None) -> str:
    """Name the source by Kafka's names. The default of a topic's setting is the broker's value."""
    if entry.is_default:
        return "DEFAULT_CONFIG"
    return "STATIC_BROKER_CONFIG" if topic is None else "DYNAMIC_TOPIC_CONFIG"


def _check_keys(keys: tuple[str, ...], entries: list[ConfigDescription]) -> None:
    from bus.settings.kafka_keys import absent_key_message

    known = [entry.name for entry in entries]
    for key in keys:
        if key not in known:
            raise Failure(absent_key_message(key, known))


@click.command(
    cls=BusCommand,
    examples="""
    bus brokers
    bus brokers --format json
    """,
)
@listing_format_option()
@address_option()
def brokers(form: str | None, address: str) -> None:
    """List the brokers of the cluster, with the addresses that they give to clients."""
    with open_admin(address) as admin:
        cluster = admin.describe_cluster()
    write_listing(_BROKER_COLUMNS, [(cluster, one) for one in cluster.brokers], form)
    if resolve_form(form) == "table":
        echo(f"cluster {cluster.cluster_id} in {cluster.root_url}", err=True)
