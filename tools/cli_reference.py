"""The parts of docs/cli.md that are not written by hand: the help of every command, and what each example prints.

python tools/cli_reference.py           writes them, with a broker on a root of their own

A command that the page does not have yet gets a section, behind those of its group; examples are added by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from bus.cli.main import cli

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
SERVE_OPTIONS = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "offsets.topic.num.partitions=1")
SERVE_OPTIONS += ("--set", "transaction.state.log.num.partitions=1")
_HELP = re.compile(r"(?<=<!-- help: )(bus[^>]*)( -->\n```text\n)(.*?)(?=```\n)", re.DOTALL)
_SESSION = re.compile(r"(?<=```console\n)(.*?)(?=```\n)", re.DOTALL)
# What differs from run to run: ids, times, sizes, names of files, how long it took.
_VARIABLE = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z?|\d+\.\d [KMGT]iB|\d+ B\b|\bpid \d+"
    r"|\b\d{4,}\b"
)


def commands() -> Iterator[tuple[str, click.Command]]:
    """All of them with their whole names, groups included."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from walk(f"{name} {inner}", found)

    return walk("bus", cli)


def with_sections(page: str) -> str:
    """The page with a section for each command that has none, whose help `with_help` writes: behind the last section
    of its group, or at the end."""
    for name, command in commands():
        if isinstance(command, click.Group) or name in named_in(page):
            continue
        group = name.rpartition(" ")[0]
        siblings = (
            [] if group == "bus" else [*re.finditer(rf"^## {group} .*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)]
        )
        place = siblings[-1].end() if siblings else len(page)
        before = page[:place].rstrip("\n")
        page = f"{before}\n\n## {name}\n\n<!-- help: {name} -->\n```text\n```\n\n{page[place:]}".rstrip("\n") + "\n"
    return page


def with_help(page: str) -> str:
    """The page with the help of each command that it has a block for. Raises `KeyError` if there is no such command."""
    known = dict(commands())

    def block(found: re.Match[str]) -> str:
        command = known[found[1]]
        parent = None if " " not in found[1] else click.Context(cli, info_name=found[1].rpartition(" ")[0])
        settings = {**command.context_settings, "terminal_width": 80}
        context = click.Context(command, info_name=found[1].rpartition(" ")[2], parent=parent, **settings)
        return found[1] + found[2] + command.get_help(context).rstrip() + "\n"

    return _HELP.sub(block, page)


def named_in(page: str) -> list[str]:
    """The commands whose help is in the page."""
    return [found[1] for found in _HELP.finditer(page)]


def with_output(page: str, run: Callable[[str], str]) -> str:
    """The page with what `run` says that each command prints, in their order."""

    def session(found: re.Match[str]) -> str:
        typed = [line[2:] for line in found[0].splitlines() if line.startswith("$ ")]
        return "".join(f"$ {line}\n{run(line)}" for line in typed)

    return _SESSION.sub(session, page)


def without_variables(page: str) -> str:
    return re.sub(r" +", " ", _VARIABLE.sub("*", page))


def run_in(address: str, root: str) -> Callable[[str], str]:
    """Runs `bus ...`, or `echo ... | bus ...`, as in a shell; output and errors as they come."""

    def run(line: str) -> str:
        text, pipe, rest = line.rpartition(" | ")
        typed, is_quiet, _ = (rest if pipe else line).partition(" 2>/dev/null")
        written = " ".join(shlex.split(text)[1:]) + "\n" if pipe else None
        environment = {"BUS_ADDRESS": address, "BUS_ROOT": root, "COLUMNS": "80"}
        result = CliRunner().invoke(cli, shlex.split(typed)[1:], input=written, env=environment, prog_name="bus")
        output = result.stdout if is_quiet else result.output
        return output.replace(root, "/srv/bus-data").replace(address.rpartition(":")[2], "9094")

    return run


def main() -> None:
    page = with_help(with_sections(PAGE.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "bus-data")
        command = [sys.executable, "-c", "from bus.cli.main import main; main()", "serve", *SERVE_OPTIONS]
        command += ["--root", root, "--listen", "127.0.0.1:0"]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            ready = re.match(r"ready: (\S+)", broker.stdout.readline())
            assert ready, "the broker did not start"
            page = with_output(page, run_in(ready[1], root))
        finally:
            broker.terminate()
            broker.wait()
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
