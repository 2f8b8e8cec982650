"""Options that several commands share, so that the same thing is always called the same."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bus.cli.failures import Failure, warn_of_secrets
from bus.cli.output import LISTING_FORMATS, echo
from bus.client.config.security import SECRET_SETTINGS, SECURITY_SETTINGS, reason_of_absence
from bus.client.config.sources import (
    ADDRESS_VARIABLE,
    FILE_VARIABLE,
    PROFILE_VARIABLE,
    chosen_profile,
    default_profile,
    security_defaults,
    warn_of_readers,
)
from bus.client_texts import text_for
from bus.errors import BusError, show_range
from bus.platform.bounded_files import FileFault, read_bounded_text
from bus.settings.files import logical_lines

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

ADDRESS_DEFAULT = "127.0.0.1:9094"
ROOT_DEFAULT = "./bus-data"

Decorator = Callable[[Any], Any]  # of a command's function

# A shell waits for the answer while the user looks at the cursor.
_COMPLETION_TIMEOUT_MS = 500
_CLIENT_DEFAULTS = f"{__name__}.client_defaults"
_PROPERTY = re.compile(r"([^=:\s]+)\s*[=:\s]\s*(.*)")


def open_admin(address: str, **configs: Any) -> Admin:
    """The client library is loaded when a command needs it: `bus --help` answers without."""
    from bus.client.admin.admin import Admin

    return Admin(address, **configs)


def address_option(*, has_properties: bool = False) -> Decorator:
    """The address of a broker, and how to reach it. `has_properties`: the command has `property_option` itself."""

    def decorate(command: Any) -> Any:
        command = profile_option()(_COMMAND_CONFIG(command))
        return plain_address_option()(command if has_properties else _CONNECTION_PROPERTY(command))

    return decorate


def _take_profile(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Take it for all clients of this command. Raises `click.BadParameter`."""
    if name is None:
        return None
    _use_for_clients(ctx, functools.partial(default_profile, name))
    try:
        profile = chosen_profile({})
    except BusError as error:
        raise click.BadParameter(error.message) from None
    if profile is not None and profile.addresses:
        ctx.default_map = {**(ctx.default_map or {}), "address": profile.addresses}
    return name


def _take_command_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take it for all clients of this command. Raises `click.BadParameter`."""
    if path is None:
        return
    try:
        lines = read_bounded_text(path).splitlines()
    except FileFault as fault:
        raise click.BadParameter(f"{path}: {fault}") from None
    pairs = _parse_properties(path, lines)
    if any(_setting_name(name) in SECRET_SETTINGS for name in pairs) and not ctx.resilient_parsing:
        warn_of_readers(path)
    others = _use_for_connections(ctx, pairs, f"--command-config {path}")
    if others:
        raise click.BadParameter(_not_of_connections(others))


def _parse_properties(path: Path, lines: Iterable[str]) -> dict[str, str]:
    """A properties file as Java reads it, but for its escapes: a name ends at the first `=`, `:` or blank. Raises
    `click.BadParameter`, with nothing of the file in it, as that may be a password."""
    pairs: dict[str, str] = {}
    for number, line in logical_lines(lines):
        found = _PROPERTY.fullmatch(line)
        if found is None:
            raise click.BadParameter(
                f"{path}, line {number}: expected KEY=VALUE, found a line without =", param_hint="--command-config"
            )
        pairs[found[1]] = found[2]
    return pairs


def _take_connection_properties(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> None:
    others = _take_properties(ctx, texts)
    if others:
        raise click.BadParameter(_not_of_connections(others))


def _take_properties(ctx: click.Context, texts: Iterable[str]) -> dict[str, str]:
    """Those that are about more than connections."""
    pairs = parse_pairs(texts, "--property")
    for name in pairs:
        if _setting_name(name) in SECRET_SETTINGS and not ctx.resilient_parsing:
            echo(
                f"warning: {name} on the command line is seen by all who list processes; give --command-config FILE",
                err=True,
            )
    return _use_for_connections(ctx, pairs, "--property")


def _use_for_connections(ctx: click.Context, pairs: Mapping[str, str], origin: str) -> dict[str, str]:
    """Make the connection settings among `pairs` those of all clients of this command; returns the other pairs."""
    named = {name: _setting_name(name) for name in pairs}
    ours = {named[name]: value.strip() for name, value in pairs.items() if named[name] in SECURITY_SETTINGS}
    if ours:
        _use_for_clients(ctx, functools.partial(security_defaults, ours, origin))
    return {name: value for name, value in pairs.items() if named[name] not in SECURITY_SETTINGS}


def _use_for_clients(ctx: click.Context, defaults: Callable[[], AbstractContextManager[None]]) -> None:
    ctx.with_resource(defaults())
    ctx.meta.setdefault(_CLIENT_DEFAULTS, []).append(defaults)


def _setting_name(name: str) -> str:
    return name.replace(".", "_")


def _not_of_connections(names: Iterable[str]) -> str:
    reasons = {name: _reason(name) for name in names}
    found = (f"{name} ({reason})" if reason else name for name, reason in reasons.items())
    return f"expected settings of the connection, security.protocol, ssl.* and sasl.*, found {', '.join(found)}"


def _reason(name: str) -> str | None:
    setting = _setting_name(name)
    return "give --address" if setting == "bootstrap_servers" else reason_of_absence(setting)


def profile_option(*, is_passed: bool = False) -> Decorator:
    """The profile of all clients of a command, which itself gets the name if it `is_passed`."""
    return click.option(
        "--profile",
        envvar=PROFILE_VARIABLE,
        show_envvar=True,
        metavar="NAME",
        expose_value=is_passed,
        is_eager=True,  # as --command-config: --address and -X win over them wherever they stand
        callback=_take_profile,
        help=f"Profile of ~/.config/bus/config.toml (or {FILE_VARIABLE}): address and connection.",
    )


_COMMAND_CONFIG = click.option(
    "--command-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    expose_value=False,
    is_eager=True,
    callback=_take_command_config,
    help="Properties of the connection, one a line: security.protocol=SSL, ssl.ca.location=ca.pem.",
)
_CONNECTION_PROPERTY = click.option(
    "--property",
    "-X",
    multiple=True,
    metavar="NAME=VALUE",
    expose_value=False,
    callback=_take_connection_properties,
    help="A property of the connection: security.protocol=SSL; repeatable.",
)


def plain_address_option(*also: str) -> Decorator:
    """The address alone; `also` are other names of it."""
    return click.option(
        "--address",
        "-a",
        *also,
        "address",
        envvar=ADDRESS_VARIABLE,
        default=ADDRESS_DEFAULT,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Broker to ask; several with commas between.",
    )


def gathered(name: str, made: Callable[..., object], *options: Decorator) -> Decorator:
    """Add `options` to a command; it gets their values as one, `name`: a dataclass `made` that has a field for each."""
    names = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]  # a dataclass

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def call(**values: Any) -> Any:
            return command(**{name: made(**{one: values.pop(one) for one in names})}, **values)

        return functools.reduce(lambda function, option: option(function), reversed(options), call)

    return decorate


def root_option(text: str = "Root of the bus whose tables are read.") -> Decorator:
    return click.option(
        "--root",
        envvar="BUS_ROOT",
        default=ROOT_DEFAULT,
        show_envvar=True,
        metavar="FOLDER",
        help=text,
    )


def listing_format_option() -> Decorator:
    return click.option(
        "--format",
        "form",
        type=click.Choice(LISTING_FORMATS),
        envvar="BUS_FORMAT",
        show_default=False,
        help="How to print.  [default: table on a terminal, json into a pipe]",
    )


def yes_option(*also: str) -> Decorator:
    return click.option("--yes", "-y", *also, "is_sure", is_flag=True, help="Do not ask.")


def is_asked(*, is_sure: bool) -> bool:
    """Return True if `confirm` asks."""
    return not is_sure and sys.stdin.isatty()


def confirm(question: str, *, is_sure: bool, otherwise: str) -> None:
    """Ask on a terminal; a program that runs the command is not asked. Raises `Failure` with `otherwise` for a no."""
    if is_asked(is_sure=is_sure) and not click.confirm(text_for(sys.stderr, question), err=True):
        raise Failure(otherwise)


def topic_argument(*, is_repeatable: bool = False, is_required: bool = True) -> Decorator:
    return click.argument(
        "topics" if is_repeatable else "topic",
        metavar=("TOPIC..." if is_repeatable else "TOPIC") if is_required else "[TOPIC...]",
        nargs=-1 if is_repeatable else 1,
        required=is_required,
        shell_complete=complete_topics,
    )


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Topic names from the root, if the command reads one, else from the broker."""
    is_internal = incomplete.startswith("_")
    if "root" in ctx.params:
        names = _topics_of_root(ctx.params["root"])
        if names is not None or ctx.get_parameter_source("root") is not ParameterSource.DEFAULT:
            return [name for name in names or () if name.startswith(incomplete) and is_internal is name.startswith("_")]
    return _complete(ctx, incomplete, lambda admin: admin.list_topics(include_internal=is_internal))


def _topics_of_root(root: str) -> list[str] | None:
    """Return the topics of the root; None if it cannot be read, which the command says once it runs."""
    from bus.tables.topics import TopicTables

    try:
        return list(TopicTables(root).topics())
    except Exception:  # a completion in a shell is no place for a message
        return None


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Group ids from the broker."""
    return _complete(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def complete_topic_configs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a topic: with `=` where a value follows."""
    from bus.settings.topic import TOPIC_CONFIGS

    end = "=" if "VALUE" in param.make_metavar(ctx) else ""
    return [f"{name}{end}" for name in sorted(TOPIC_CONFIGS) if name.startswith(incomplete)]


def complete_broker_configs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a broker, as `complete_topic_configs`; of a topic where the command has --topic."""
    if ctx.params.get("topic"):
        return complete_topic_configs(ctx, param, incomplete)
    from bus.settings.broker import BROKER_CONFIGS

    end = "=" if "VALUE" in param.make_metavar(ctx) else ""
    return [f"{name}{end}" for name in sorted(BROKER_CONFIGS) if name.startswith(incomplete)]


def set_option(meaning: str) -> Decorator:
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_broker_configs,
        help=meaning,
    )


def find_root(address: str) -> str | None:
    """The root of the broker that answers there within a moment, if it is a folder of this machine."""
    from bus.client.admin.admin import Admin

    try:
        with Admin(
            address, request_timeout_ms=_COMPLETION_TIMEOUT_MS, default_api_timeout_ms=_COMPLETION_TIMEOUT_MS, retries=0
        ) as admin:
            root = admin.describe_cluster().root_url.removeprefix("file://")
    except (BusError, OSError):
        return None
    return root if Path(root).is_dir() else None


def complete_transactional_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Transactional ids from the brokers."""
    return _complete(ctx, incomplete, lambda admin: [one.transactional_id for one in admin.list_transactions()])


def _complete(ctx: click.Context, incomplete: str, names_of: Callable[[Admin], list[str]]) -> list[str]:
    """If the broker answers within a moment; nothing otherwise, and never an error."""
    from bus.client.admin.admin import Admin

    address = ctx.params.get("address") or os.environ.get(ADDRESS_VARIABLE) or ADDRESS_DEFAULT
    try:
        with ExitStack() as stack:
            for defaults in ctx.meta.get(_CLIENT_DEFAULTS, ()):  # the context of the command has ended already
                stack.enter_context(defaults())
            admin = Admin(
                address,
                request_timeout_ms=_COMPLETION_TIMEOUT_MS,
                default_api_timeout_ms=_COMPLETION_TIMEOUT_MS,
                retries=0,
            )
            names = names_of(stack.enter_context(admin))
    except Exception:  # a completion in a shell is no place for a message
        return []
    return [name for name in names if name.startswith(incomplete)]


COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def property_option() -> Decorator:
    return click.option(
        "--property",
        "-X",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda ctx, _, texts: tuple(f"{name}={value}" for name, value in _take_properties(ctx, texts).items()),
        help="Any setting of the producer, by Kafka's name: linger.ms=20; repeatable.",
    )


def parse_properties(texts: Iterable[str]) -> dict[str, Any]:
    """Settings for a client: dots become underscores, numbers and truth values what they look like."""
    pairs = parse_pairs(texts, "--property")
    warn_of_secrets([name for name in pairs if name.replace(".", "_") in SECRET_SETTINGS], "a file or a profile")
    return {name.replace(".", "_"): _typed(value) for name, value in pairs.items()}


def _typed(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch("0|-?[1-9][0-9]{0,18}", text) else text  # 007 is no number, but a name


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
                f"expected a partition of {topic} {show_range(0, last)}, found {number}", param_hint="--partition"
            )
    return sorted(set(wanted)) or there
