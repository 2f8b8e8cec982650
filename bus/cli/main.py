"""The `bus` command: its groups, each in a module of its own that is loaded when it is used; shell completion."""

from __future__ import annotations

import os
import sys

import click

from bus.cli.commands import BusCommand, LazyGroup, NoPandas
from bus.cli.failures import write_error
from bus.cli.output import echo, prepare_streams
from bus.client.config.sources import only_settings_of_connections
from bus.settings.keys import is_text

_COMMANDS = {
    "serve": ("bus.cli.cluster.serve:serve", "Run a broker on a folder."),
    "topics": (
        "bus.cli.topics.topic_commands:topics",
        "Create, list, describe, alter and delete topics, and delete records.",
    ),
    "produce": ("bus.cli.records.produce:produce", "Send lines or JSON records to a topic."),
    "consume": ("bus.cli.records.consume:consume", "Read the records of topics, alone or in a group."),
    "acls": (
        "bus.cli.security.acl_commands:acls",
        "Who may do what: list, add and remove ACLs, and check what decides.",
    ),
    "brokers": ("bus.cli.topics.config_commands:brokers", "List the brokers of the cluster."),
    "cluster": (
        "bus.cli.cluster.cluster_commands:cluster",
        "Start, stop and inspect a cluster of brokers on one root.",
    ),
    "config": ("bus.cli.topics.config_commands:config", "Show every setting of the broker or a topic."),
    "groups": (
        "bus.cli.groups.group_commands:groups",
        "List, describe, create, delete and reset consumer groups; remove members.",
    ),
    "quotas": (
        "bus.cli.security.quota_commands:quotas",
        "List, set and delete quotas of users and client ids; show what is used.",
    ),
    "transactions": (
        "bus.cli.cluster.transaction_commands:transactions",
        "List, describe, abort and fence transactions; find what hangs.",
    ),
    "offsets": ("bus.cli.topics.topic_commands:offsets", "Show the offsets of a topic's partitions."),
    "sql": ("bus.cli.sql.sql_commands:sql", "Query topics with SQL, broker up or down."),
    "users": ("bus.cli.security.user_commands:users", "Users that log in by a password: create, list, delete, reset."),
    "views": (
        "bus.cli.topics.view_commands:views",
        "JSON values as typed columns for SQL: create, list, describe, delete.",
    ),
    "log": ("bus.cli.log.log_commands:log", "Inspect and verify the tables under a topic."),
    "jobs": ("bus.jobs.commands:jobs", "Run jobs on Spark: they look after large logs, and carry records."),
    "perf": ("bus.cli.records.perf:perf", "Measure produce, consume and latency."),
    "completion": ("bus.cli.main:completion", "Print the completion script of a shell."),
}
_SHELLS = ("bash", "zsh", "fish")
_COMPLETION_VARIABLE = "_BUS_COMPLETE"


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from bus import __version__

        echo(f"bus {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, lazy_commands=_COMMANDS, name="bus")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A streaming message bus: Kafka's semantics over gRPC, every topic partition a Delta Lake table.

    \b
    Start with:
      bus serve
      bus topics create orders --partitions 4
      echo '{"id": 1}' | bus produce orders
      bus consume orders --exit
      bus sql "SELECT * FROM orders"

    Commands that talk to a broker find it by --address or BUS_ADDRESS (127.0.0.1:9094); commands that read the
    tables find them by --root or BUS_ROOT (./bus-data). Every command has --help with examples, and --debug to
    show the traceback of a failure.
    """


@click.command(
    cls=BusCommand,
    examples="""
    eval "$(bus completion bash)"
    bus completion zsh > ~/.zfunc/_bus
    bus completion fish > ~/.config/fish/completions/bus.fish
    """,
)
@click.argument("shell", metavar="bash|zsh|fish", shell_complete=lambda *_: list(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Names of topics, groups and transactional ids come from the broker, if one answers within half a second; where a
    command reads tables, those of topics come from the root.
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell) if shell in _SHELLS else None
    if script is None:
        raise click.UsageError(f"expected a shell that can be completed, {', '.join(_SHELLS)}; found {shell!r}")
    echo(script(ctx.find_root().command, {}, "bus", _COMPLETION_VARIABLE).source())


def _require_utf_8() -> None:
    """Names and values are UTF-8 in every locale. Python sees to it in a POSIX locale, unless it is told not to: then
    it starts once more. Ends the command if an argument is no text."""
    if sys.getfilesystemencoding() == "ascii":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for argument in sys.argv[1:]:
        if not is_text(argument):
            write_error(f"expected arguments in UTF-8, found {argument!r}")
            sys.exit(click.UsageError.exit_code)


def main() -> None:
    # What gRPC's core has to say of a connection that fails comes as an error, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _require_utf_8()
    prepare_streams()
    sys.meta_path.insert(0, NoPandas)
    with only_settings_of_connections():
        cli(prog_name="bus")
