"""`bus serve`: one broker on one root, until it is told to stop.

The line it prints when it is ready is the signal for scripts and people; everything else it has to say is logged to
standard error. Settings: options win over the file, the file over the defaults.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import warn_of_secrets
from bus.cli.options import set_option
from bus.errors import count_of
from bus.extras import check_extra
from bus.settings.files import read_toml
from bus.settings.keys import ConfigError

if TYPE_CHECKING:
    from bus.broker import Broker

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@click.command(
    cls=BusCommand,
    examples="""
    bus serve
    bus serve --root /srv/bus --listen 0.0.0.0:9094 --advertise bus.example.com:9094 --insecure
    bus serve --config conf/broker.toml --log-config conf/logging.toml
    bus serve --set num.partitions=4 --set commit.interval.ms=50 --log-format json
    """,
)
@click.option(
    "--root",
    metavar="FOLDER",
    envvar="BUS_ROOT",
    show_envvar=True,
    help="Folder of the topics.  [default: ./bus-data]",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to serve on; port 0: a free one.  [default: 127.0.0.1:9094]"
)
@click.option("--advertise", metavar="HOST:PORT", help="Address for clients that come another way.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without authentication: they may read, write and delete.",
)
@click.option("--broker-id", type=int, metavar="N", help="Number of this broker in its cluster.  [default: 0]")
@click.option("--rack", metavar="RACK", help="Rack or zone of this broker.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="TOML file, as conf/broker.toml."
)
@set_option("Any key of the file; repeatable.")
@click.option("--log-config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file, as conf/logging.toml.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Lines for people, or JSON objects.  [default: text]"
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    help="The lowest level that is logged.  [default: INFO]",
)
def serve(
    root: str | None,
    listen: str | None,
    advertise: str | None,
    insecure: bool,
    broker_id: int | None,
    rack: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    log_config: Path | None,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Run a broker: its topics are Delta tables in a folder, its clients come over gRPC.

    Prints one line when it is ready. The first Ctrl-C, SIGTERM or SIGHUP finishes and answers what is in flight; a
    second Ctrl-C or SIGTERM exits at once, which loses nothing that was acknowledged with acks=all.
    """
    from bus.settings.loading import literal_secrets

    given = [_parse_setting(text) for text in settings]
    warn_of_secrets(literal_secrets(given), "the file of --config, or a variable such as ${file:/PATH:KEY}")
    overrides: dict[str, object] = dict(given)
    named = {"root": root, "listen": listen, "advertise": advertise, "broker.id": broker_id, "broker.rack": rack}
    overrides.update({name: value for name, value in named.items() if value is not None})
    if insecure:
        overrides["allow.insecure.listeners"] = True
    check_extra("broker")
    from bus.settings.loading import load_broker_config

    config = load_broker_config(config_file, overrides)
    _configure_logging(log_config, log_format, log_level)
    # What gRPC's core has to say of a port in use comes as an exception, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from bus.broker import run_broker
    from bus.runtime.logs import DescriptorWriter

    output = DescriptorWriter(1)
    run_broker(config, lambda broker: output.put(_ready_line(broker)))
    output.close()


def _ready_line(broker: Broker) -> str:
    """The one line that says: clients may come."""
    cluster = broker.cluster
    count = count_of(len(cluster.state.topics), "topic")
    return f"ready: {broker.shown_addresses} serves {cluster.storage.root_url} ({count})\n"


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"expected KEY=VALUE, found {text!r}", param_hint="--set")
    return name.strip(), value


def _configure_logging(path: Path | None, log_format: str | None, log_level: str | None) -> None:
    from bus.runtime.logs import configure_logging

    section = _read_log_config(path) if path is not None else {}
    form, level, levels = section.get("format", "text"), section.get("level", "INFO"), section.get("levels", {})
    try:
        if not isinstance(levels, dict):
            raise ValueError(f"expected [logging.levels] with a level for each logger, found {levels!r}")
        configure_logging(
            form=log_format or form,
            level=(log_level or str(level)).upper(),
            # A level on the command line is for everything: it must not be undone by a file.
            levels={} if log_level else levels,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_log_config(path: Path) -> dict[str, Any]:
    document = read_toml(path)
    section = document.get("logging", {})
    unknown = [*(document.keys() - {"logging"}), *(section.keys() - {"format", "level", "levels"})]
    if unknown:
        raise ConfigError(
            f"{path}: expected [logging] with format, level and levels, found {', '.join(sorted(unknown))}"
        )
    return dict(section)
