"""How a command ends that cannot do what it was asked: one line on standard error and an exit status, no traceback.

Guards one promise: what the user can mend (a refusal of the broker, a broker that is not there, a root that is
in use, a file that cannot be read) is told in one line that says what to do; only a fault of the program itself shows
a traceback, and `--debug` shows one for everything. Exit status 1 for failures, 2 for a command that is typed wrong.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from bus.cli.output import echo, echo_styled, styled
from bus.client_texts import text_for
from bus.errors import BusError, ErrorCode, StorageFault, did_you_mean, near_names
from bus.extras import extra_missing
from bus.platform.signals import EXIT_SIGNAL, signal_of
from bus.settings.keys import ConfigError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = EXIT_SIGNAL + signal.SIGINT
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_DEBUG = "bus.cli.debug"
# By name: importing an engine only to know its errors would cost every command its start.
_TOLD_AS_THEY_ARE = ("SqlError", "SparkUnavailable", "JarsMissing", "JobFailed")


class Failure(click.ClickException):
    """Ends the command with `error: message` on standard error."""

    exit_code = EXIT_FAILURE

    def show(self, file: IO[Any] | None = None) -> None:
        write_error(self.message)


def write_error(message: str) -> None:
    """`error: message` on standard error."""
    text = text_for(sys.stderr, message)
    echo_styled(f"{styled('error:', sys.stderr, fg='red', bold=True)} {text}", err=True)


def warn_of_secrets(names: Sequence[str], instead: str) -> None:
    """Those of `names` were given on the command line."""
    if names:
        verb = "is" if len(names) == 1 else "are"
        echo(
            f"warning: {', '.join(names)} {verb} on the command line, where other users of this machine (ps) and the "
            f"history of the shell have it: give it by {instead}",
            err=True,
        )


def report_failure(error: click.ClickException | click.Abort | BrokenPipeError) -> int:
    """Tell it on standard error; the exit status."""
    if isinstance(error, BrokenPipeError):
        _close_stdout()
        return EXIT_BROKEN_PIPE
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(error.ctx.get_help())
        return 0
    if not isinstance(error, click.UsageError):
        error.show()
        drop_output()
        return error.exit_code
    message = explain_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
    write_error(message[:1].lower() + message[1:])
    if error.ctx is not None:
        echo(f"see: {error.ctx.command_path} --help", err=True)
    return error.exit_code


@contextmanager
def translated_failures(ctx: click.Context) -> Iterator[None]:
    """Turns what a command raises into a `Failure`; with `--debug` the exception goes on as it is."""
    try:
        yield
    except BrokenPipeError:
        _close_stdout()
        ctx.exit(EXIT_BROKEN_PIPE)
    except KeyboardInterrupt as interrupt:
        ctx.exit(EXIT_SIGNAL + signal_of(interrupt))
    except Exception as error:
        message = describe_failure(error)
        if message is None or is_debug(ctx):
            raise
        raise Failure(message) from error


def describe_failure(error: Exception) -> str | None:
    """One line for people, or None for a fault of the program itself."""
    if isinstance(error, BusError):
        return _describe_bus_error(error)
    if isinstance(error, (ConfigError, StorageFault)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return where + (error.strerror or str(error)).lower() if where else error.strerror or str(error)
    if type(error).__name__ in _TOLD_AS_THEY_ARE:
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (missing := extra_missing(error)) is not None:
        return str(missing)
    return None


def _describe_bus_error(error: BusError) -> str:
    message = f"{error.name}: {error.message}"
    if type(error).__name__ == "UnusableConnection":
        return message  # a broker is there
    if "no token could be obtained" in message:
        return message  # the identity provider is not there
    if error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.LEADER_NOT_AVAILABLE) and "bus serve" not in message:
        return f"{message}; is a broker running? start one with: bus serve, or a cluster with: bus cluster up"
    if "expected an existing topic" in message:
        return f"{message}; those that exist: bus topics list"
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return f"{message}; those that exist: bus groups list"
    if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and "those that exist" not in message:
        return f"{message}; those that exist: bus transactions list"
    return message


def is_debug(ctx: click.Context) -> bool:
    return bool(ctx.find_root().meta.get(_DEBUG))


def debug_option() -> Callable[[Any], Any]:
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        hidden=True,
        help="Show the traceback of a failure.",
    )


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta[_DEBUG] = True


def drop_output() -> None:
    """Drop what cannot be printed, which may be the failure that was told: it must not fail once more at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        _close_stdout()


def _close_stdout() -> None:
    """The reader has gone away: what is still buffered must not raise again while the interpreter ends."""
    with suppress(OSError, ValueError):
        sys.stdout.close()


_WORD = re.compile(r"[A-Za-z]+")

# By the name that was typed: what is meant here, the first of them that the command has.
_MEANT = {
    "--bootstrap-server": ("--address",),
    "--bootstrap-servers": ("--address",),
    "--broker-list": ("--address",),
    "--broker": ("--address",),
    "--host": ("--listen", "--address"),
    "--port": ("--listen", "--address"),
    "--root": ("--address",),
    "--address": ("--listen", "--root"),
    "--offset": ("--from", "--time", "--from-offset"),
    "--max-messages": ("--max",),
    "--timeout-ms": ("--exit",),
    "--num-records": ("--records",),
    "--messages": ("--records", "--max"),
    "--producer-property": ("--property",),
    "--producer.config": ("--property",),
    "--add-config": ("--config",),
    "--set": ("--config",),
    "--delete-configs": ("--delete-config",),
    "--consumer-group": ("--group",),
    "--group-id": ("--group",),
    "--format-json": ("--format",),
    "--output": ("--format",),
    "--allow": ("--allow-principal",),
    "--deny": ("--deny-principal",),
    "--principal": ("--allow-principal",),
}
_REASONS = {
    "--zookeeper": "there is no ZooKeeper: the cluster's metadata is a log in the root",
    "--command-config": "this command does not ask a broker",
    "--transactional-id": "an id is written without an option",
}
_ALIKE = 0.75  # `--operation` and `--property` are not


def explain_option(error: click.NoSuchOption) -> str:
    """One line: that there is no such option, and what to type instead if that is known."""
    name, ctx = error.option_name, error.ctx
    said = f"no such option {name!r}"
    if ctx is None:
        return f"{said}."
    command = name.lstrip("-")
    if isinstance(ctx.command, click.Group) and command in ctx.command.list_commands(ctx):
        return f"{said}; {command} is a command: {ctx.command_path} {command}"
    known = {option: param for param in ctx.command.get_params(ctx) for option in param.opts}
    for meant in _MEANT.get(name, ()):
        if meant in known:
            value = known[meant].make_metavar(ctx) if not getattr(known[meant], "is_flag", False) else ""
            return f"{said}; here it is {f'{meant} {value}'.strip()}"
    if name in _REASONS:
        return f"{said}: {_REASONS[name]}"
    for param in ctx.command.get_params(ctx):
        word = _WORD.search(param.make_metavar(ctx)) if isinstance(param, click.Argument) else None
        if word is not None and word[0].casefold() == command.casefold():
            return f"{said}; {word[0]} is written without an option: {ctx.command_path} {word[0]}"
    shown = [option for option in known if option.startswith("--") and option != "--debug"]
    return said + (did_you_mean(near_names(name, shown, count_max=2, likeness_min=_ALIKE)) or ".")
