"""`bus quotas`: what users and client ids may use, and what they use of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bus.cli.commands import BusGroup
from bus.cli.options import address_option, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.descriptions import DEFAULT_NAME, QuotaEntity, QuotaUsage, show_entity_name

_NAMES = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_rate")


def _complete_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(incomplete)]


def _complete_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [f"{name}=" for name in _complete_names(ctx, param, incomplete)]


_LIST_COLUMNS: Columns[tuple[QuotaEntity, str, float]] = (
    Column("user", lambda row: show_entity_name(row[0].user), is_key=True),
    Column("client_id", lambda row: show_entity_name(row[0].client_id), is_key=True),
    Column("quota", lambda row: row[1], is_key=True),
    Column("value", lambda row: row[2], Kind.NUMBER),
)
_USAGE_COLUMNS: Columns[QuotaUsage] = (
    Column("broker_id", lambda one: one.broker_id, is_key=True),
    Column("user", lambda one: show_entity_name(one.entity.user), is_key=True),
    Column("client_id", lambda one: show_entity_name(one.entity.client_id), is_key=True),
    Column("quota", lambda one: one.quota, is_key=True),
    Column("limit", lambda one: one.limit, Kind.NUMBER),
    Column("rate", lambda one: round(one.rate, 1), Kind.NUMBER),
    Column("throttle_time_ms", lambda one: one.throttle_time_ms, Kind.NUMBER),
)

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _entity_options(command: CommandT) -> CommandT:
    for option in (
        click.option("--default-client", is_flag=True, help="All client ids without a quota of their own."),
        click.option("--client", metavar="ID", help="The client id that programs give themselves (client_id)."),
        click.option("--default-user", is_flag=True, help="All users without a quota of their own."),
        click.option("--user", metavar="NAME", help="The user, without User: before it; ANONYMOUS without a login."),
    ):
        command = option(command)
    return command


@click.group(cls=BusGroup)
def quotas() -> None:
    """Quotas of users and client ids: list, set and delete them, and show what is used."""


@quotas.command(
    "list",
    examples="""
    bus quotas list
    bus quotas list --user alice
    bus quotas list --default-client --format json
    """,
)
@_entity_options
@listing_format_option()
@address_option()
def list_quotas(
    user: str | None, default_user: bool, client: str | None, default_client: bool, form: str | None, address: str
) -> None:
    """List the quotas, or those that name this user and this client id."""
    with open_admin(address) as admin:
        found = admin.describe_client_quotas(_entity(user, default_user, client, default_client))
    rows = [
        (entity, name, limit)
        for entity, limits in sorted(found.items(), key=lambda one: _sort_key(one[0]))
        for name, limit in sorted(limits.items())
    ]
    write_listing(_LIST_COLUMNS, rows, form)


@quotas.command(
    "set",
    examples="""
    bus quotas set producer_byte_rate=1048576 --user alice
    bus quotas set producer_byte_rate=1048576 consumer_byte_rate=2097152 --user alice --client loader
    bus quotas set request_rate=100 --default-user
    """,
)
@click.argument("quotas", metavar="NAME=VALUE...", nargs=-1, required=True, shell_complete=_complete_values)
@_entity_options
@address_option()
def set_quotas(
    quotas: tuple[str, ...],
    user: str | None,
    default_user: bool,
    client: str | None,
    default_client: bool,
    address: str,
) -> None:
    """Set quotas: per second, and for producer_byte_rate, consumer_byte_rate and request_rate per broker.

    NAME: producer_byte_rate, consumer_byte_rate (bytes), request_rate (requests) or controller_mutation_rate
    (partitions that are created or deleted).
    """
    entity = _entity(user, default_user, client, default_client, is_required=True)
    changes = dict(_parse(text) for text in quotas)
    with open_admin(address) as admin:
        admin.alter_client_quotas({entity: changes})
    echo(f"Updated config for entity: {entity}.")


@quotas.command(
    examples="""
    bus quotas delete producer_byte_rate --user alice
    bus quotas delete --user alice --client loader
    """
)
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=_complete_names)
@_entity_options
@address_option()
def delete(
    names: tuple[str, ...], user: str | None, default_user: bool, client: str | None, default_client: bool, address: str
) -> None:
    """Delete these quotas of an entity, or all that it has."""
    entity = _entity(user, default_user, client, default_client, is_required=True)
    with open_admin(address) as admin:
        gone = names or tuple(admin.describe_client_quotas(entity, strict=True).get(entity, {}))
        admin.alter_client_quotas({entity: dict.fromkeys(gone)})
    echo(f"Updated config for entity: {entity}.")


@quotas.command(examples="bus quotas usage")
@listing_format_option()
@address_option()
def usage(form: str | None, address: str) -> None:
    """Show what is used of quotas at each broker, per second, by entities that have used any in the last hour."""
    with open_admin(address) as admin:
        found = admin.describe_quota_usage()
    write_listing(_USAGE_COLUMNS, found, form)


def _entity(
    user: str | None, is_default_user: bool, client: str | None, is_default_client: bool, *, is_required: bool = False
) -> QuotaEntity:
    """Raises `click.UsageError`."""
    for name, is_default, what in ((user, is_default_user, "user"), (client, is_default_client, "client")):
        if name is not None and is_default:
            raise click.UsageError(f"expected --{what} or --default-{what}, found both")
    if user is not None and user.startswith("User:"):
        raise click.UsageError(f"--user: expected the name alone, {user.removeprefix('User:')!r}, found {user!r}")
    entity = QuotaEntity(DEFAULT_NAME if is_default_user else user, DEFAULT_NAME if is_default_client else client)
    if is_required and entity == QuotaEntity():
        raise click.UsageError("expected --user, --default-user, --client or --default-client, found none")
    return entity


def _parse(text: str) -> tuple[str, float]:
    """Raises `click.UsageError`."""
    name, equals, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        found = text if equals else f"{text!r} without a value"
        raise click.UsageError(f"expected NAME=VALUE with a number, found {found}") from None


def _sort_key(entity: QuotaEntity) -> tuple[str, str]:
    return show_entity_name(entity.user) or "", show_entity_name(entity.client_id) or ""
