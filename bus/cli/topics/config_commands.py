"""`bus config` and `bus brokers`: which brokers there are, and every setting with where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.options import address_option, complete_broker_configs, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, echo, resolve_form, write_listing
from bus.cli.topics.topic_commands import write_config

if TYPE_CHECKING:
    from bus.descriptions import ConfigDescription

_COLUMNS = (
    Column("name", is_key=True),
    Column("value"),
    Column("default"),
    Column("source"),
    Column("type"),
    Column("valid_values"),
    Column("documentation"),
)
_BROKER_COLUMNS = (
    Column("broker", is_number=True, is_key=True),
    Column("host"),
    Column("port", is_number=True),
    Column("role"),
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
    rows = [
        (
            one.name,
            one.value,
            one.default_value,
            _source(one, topic),
            one.type,
            one.valid_values,
            one.documentation,
        )
        for one in entries
    ]
    write_listing(_COLUMNS, rows, form)


def _source(entry: ConfigDescription, topic: str | None) -> str:
    """By Kafka's names. The default of a topic's setting is the broker's value."""
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
    rows = [
        (one.broker_id, one.host, one.port, "controller" if one.broker_id == cluster.controller_id else "broker")
        for one in cluster.brokers
    ]
    write_listing(_BROKER_COLUMNS, rows, form)
    if resolve_form(form) == "table":
        echo(f"cluster {cluster.cluster_id} in {cluster.root_url}", err=True)
