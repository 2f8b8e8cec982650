"""Commands that load when they are used, and that know what was probably meant.

Guards one promise: `bus --help` and a command itself import what they need and no more, so that the command line
answers at once although the engines behind it take seconds to load.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from bus.cli.failures import Failure, debug_option, describe_failure, is_debug, report_failure, translated_failures
from bus.cli.output import echo
from bus.client.config.sources import ADDRESS_VARIABLE, warnings_of_variables
from bus.client.first_contact import broker_needed
from bus.errors import RootNotUsable, did_you_mean, near_names
from bus.platform.signals import signals_as_interrupts

_HINTS_MAX = 3
_ALIKE = 0.7  # `lag` and `log` are not
# Other words for commands, Kafka's tools among them; the first that the group has is meant.
_MEANT = {
    "add": ("create", "add"),
    "cat": ("consume",),
    "configs": ("config",),
    "connect": ("serve",),
    "console-consumer": ("consume",),
    "console-producer": ("produce",),
    "consumer-groups": ("groups",),
    "consumer-perf-test": ("perf consume",),
    "delete-records": ("topics delete-records",),
    "drop": ("delete",),
    "dump-log": ("log dump",),
    "get": ("describe",),
    "get-offsets": ("offsets",),
    "info": ("describe",),
    "lag": ("groups describe", "describe"),
    "ls": ("list",),
    "new": ("create",),
    "producer-perf-test": ("perf produce",),
    "query": ("sql",),
    "read": ("consume",),
    "reassign-partitions": ("cluster reassign",),
    "remove": ("delete", "remove"),
    "reset": ("reset-offsets", "reset"),
    "rm": ("delete", "remove"),
    "send": ("produce",),
    "server": ("serve",),
    "show": ("describe", "list"),
    "start": ("serve", "up"),
    "stop": ("cluster down", "down"),
    "tail": ("consume",),
    "update": ("alter", "set"),
    "write": ("produce",),
}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


class BusCommand(click.Command):
    """A command with `--debug`, whose help keeps examples as they are typed."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT_SETTINGS, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)
        self.examples = examples
        debug_option()(self)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with signals_as_interrupts():
                return super().invoke(ctx)
        except RootNotUsable as error:
            if is_debug(ctx) or ctx.get_parameter_source("root") is not ParameterSource.DEFAULT:
                raise
            raise Failure(f"{error}; name the root by --root or BUS_ROOT{_root_of_broker()}") from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for line in self.examples.strip().splitlines():
                    formatter.write(f"{indent}{line.strip()}\n")


def _root_of_broker() -> str:
    """Return the root of a broker that answers at once, if that is a folder that is here; for a message."""
    from bus.cli.options import ADDRESS_DEFAULT, find_root

    address = os.environ.get(ADDRESS_VARIABLE) or ADDRESS_DEFAULT
    root = find_root(address)
    return f"; the broker at {address} serves {root}" if root else ""


class BusGroup(click.Group):
    """A group of commands; an unknown one is answered with the nearest."""

    command_class = BusCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT_SETTINGS, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)
        debug_option()(self)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"no such command {name!r}{self._hint(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, name: str) -> str:
        """Return what was probably meant: the same by another word, else one written alike, else one of another
        group."""
        known = self.list_commands(ctx)
        path = ctx.command_path
        meant = [f"{path} {words}" for words in _MEANT.get(name, ()) if words.partition(" ")[0] in known]
        if not meant:
            near = near_names(name, known, count_max=2, likeness_min=_ALIKE)
            meant = [f"{path} {other}" for other in near] or self._elsewhere(ctx, name)[:_HINTS_MAX]
        return did_you_mean(meant) or f"; known: {', '.join(known)}"

    def _elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Commands of that name in the groups of this one."""
        groups = ((group, self.get_command(ctx, group)) for group in self.list_commands(ctx))
        return [
            f"{ctx.command_path} {group} {name}"
            for group, command in groups
            if isinstance(command, click.Group) and command.get_command(ctx, name) is not None
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command)) for name, command in commands if command is not None])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run as click's does, but every failure is told in the same form, and ends with the status of its kind."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except (click.ClickException, click.Abort, BrokenPipeError) as error:
            status = report_failure(error)
        sys.exit(status if isinstance(status, int) else 0)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Help and versions are printed while it is made."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failure(describe_failure(error) or str(error)) from error

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.parent is not None:
            return super().invoke(ctx)
        for warning in warnings_of_variables(os.environ).values():
            echo(f"warning: {warning}", err=True)
        with translated_failures(ctx), broker_needed():
            return super().invoke(ctx)


def _first_sentence(command: click.Command) -> str:
    """The first of its help, whole: a line that is cut says less than one that goes on in the next."""
    paragraph = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


class LazyGroup(BusGroup):
    """Commands by name, each `(module:attribute, one line of help)`; a module is imported when its command is used."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy_commands:
            return None
        module, _, attribute = self._lazy_commands[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self._lazy_commands.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in self._lazy_commands:
            command = self.get_command(ctx, args[0])
            assert command is not None
            return args[0], command, args[1:]
        return super().resolve_command(ctx, args)


class NoPandas:
    """Arrow imports pandas, if it is installed, for the first Python value that it converts: a broker and most commands
    would take half as long again to start. Nothing that the command runs needs it, but for a user's functions in jobs.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the bus command runs without pandas", name=name)


def allow_pandas() -> None:
    """Let code of users import pandas from here on."""
    if NoPandas in sys.meta_path:
        sys.meta_path.remove(NoPandas)
