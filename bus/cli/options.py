"""Options that several commands share, so that the same thing is always called the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bus.cli.output import LISTING_FORMATS

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

ADDRESS_DEFAULT = "127.0.0.1:9094"
ROOT_DEFAULT = "./bus-data"

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_Decorator = Callable[[CommandT], CommandT]

# A shell waits for the answer while the user looks at the cursor.
_COMPLETION_TIMEOUT_MS = 500


def open_admin(address: str, **configs: Any) -> Admin:
    """The client library is loaded when a command needs it: `bus --help` answers without."""
    from bus.client.admin.admin import Admin

    return Admin(address, **configs)


def address_option() -> _Decorator[Any]:
    return click.option(
        "--address",
        "-a",
        envvar="BUS_ADDRESS",
        default=ADDRESS_DEFAULT,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Broker to ask; several with commas between.",
    )


def root_option(text: str = "Root of the bus whose tables are read.") -> _Decorator[Any]:
    return click.option(
        "--root",
        envvar="BUS_ROOT",
        default=ROOT_DEFAULT,
        show_envvar=True,
        metavar="FOLDER",
        help=text,
    )


def listing_format_option() -> _Decorator[Any]:
    return click.option(
        "--format",
        "form",
        type=click.Choice(LISTING_FORMATS),
        show_default=False,
        help="How to print.  [default: table on a terminal, json into a pipe]",
    )


def topic_argument(*, is_repeatable: bool = False, is_required: bool = True) -> _Decorator[Any]:
    return click.argument(
        "topics" if is_repeatable else "topic",
        metavar="TOPIC..." if is_repeatable else "TOPIC",
        nargs=-1 if is_repeatable else 1,
        required=is_required,
        shell_complete=complete_topics,
    )


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Topic names from the broker."""
    is_internal = incomplete.startswith("_")
    return _complete(ctx, incomplete, lambda admin: admin.list_topics(include_internal=is_internal))


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Group ids from the broker."""
    return _complete(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def complete_transactional_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Transactional ids from the brokers."""
    return _complete(ctx, incomplete, lambda admin: [one.transactional_id for one in admin.list_transactions()])


def _complete(ctx: click.Context, incomplete: str, names_of: Callable[[Admin], list[str]]) -> list[str]:
    """If the broker answers within a moment; nothing otherwise, and never an error."""
    from bus.client.admin.admin import Admin

    address = ctx.params.get("address") or ADDRESS_DEFAULT
    try:
        with Admin(
            address, request_timeout_ms=_COMPLETION_TIMEOUT_MS, default_api_timeout_ms=_COMPLETION_TIMEOUT_MS, retries=0
        ) as admin:
            names = names_of(admin)
    except Exception:  # a completion in a shell is no place for a message
        return []
    return [name for name in names if name.startswith(incomplete)]


COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def property_option() -> _Decorator[Any]:
    return click.option(
        "--property",
        "-X",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of the producer, by Kafka's name: linger.ms=20; repeatable.",
    )


def parse_properties(texts: Iterable[str]) -> dict[str, Any]:
    """Settings for a client: dots become underscores, numbers and truth values what they look like."""
    return {name.replace(".", "_"): _typed(value) for name, value in parse_pairs(texts, "--property").items()}


def _typed(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.lstrip("-").isdecimal() else text


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` each; the last one of a key counts. Raises `click.BadParameter`."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"expected KEY=VALUE, found {text!r}", param_hint=option)
        pairs[name.strip()] = value
    return pairs


def choose_partitions(topic: str, wanted: Sequence[int], known: Iterable[int]) -> list[int]:
    """The partitions to use: those that were asked for, or all. Raises `click.BadParameter`."""
    there = sorted(known)
    for number in wanted:
        if number not in there:
            last = there[-1] if there else -1
            raise click.BadParameter(
                f"expected a partition of {topic} from 0 to {last}, found {number}", param_hint="--partition"
            )
    return sorted(set(wanted)) or there
