"""docs/cli.md says what the commands are and print: its help blocks and examples are those of this very code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import click
import pytest

from bus.cli.failures import EXIT_BROKEN_PIPE, EXIT_FAILURE, EXIT_INTERRUPTED
from tests.support.broker_process import BrokerProcess

TOOL = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "cli_reference.py"))


@pytest.fixture(scope="module")
def page() -> str:
    return str(TOOL["PAGE"].read_text(encoding="utf-8"))


def test_every_command_has_its_help_in_the_page(page: str) -> None:
    leaves = [name for name, command in TOOL["commands"]() if not isinstance(command, click.Group)]
    how = "python tools/cli_reference.py writes docs/cli.md"
    assert sorted(TOOL["named_in"](page)) == sorted(leaves), how
    assert TOOL["with_help"](page) == page, how


@pytest.mark.parametrize("command", ["bus groups create", "bus groups delete", "bus completion"])
def test_a_command_that_the_page_does_not_have_gets_a_section_with_its_help(page: str, command: str) -> None:
    section = re.search(rf"^## {command}\n.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert section is not None
    found = TOOL["with_help"](TOOL["with_sections"](page.replace(section[0], "")))
    assert sorted(TOOL["named_in"](found)) == sorted(TOOL["named_in"](page))
    headings = re.findall(r"^## (.*)$", found, re.MULTILINE)
    assert len(headings) == len(set(headings))
    group = command.rpartition(" ")[0]
    before = headings[headings.index(command) - 1]
    assert headings[-1] == command if group == "bus" else before.startswith(group)
    help_text = section[0].partition("```text\n")[2].partition("```\n")[0]
    assert f"\n\n## {command}\n\n<!-- help: {command} -->\n```text\n{help_text}```\n" in found


def test_a_page_with_all_commands_stays_as_it_is(page: str) -> None:
    assert TOOL["with_sections"](page) == page


def test_examples_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    root = tmp_path / "bus-data"
    with BrokerProcess(root, *TOOL["SERVE_OPTIONS"]) as broker:
        found = TOOL["with_output"](page, TOOL["run_in"](broker.address, str(root)))
    stable = TOOL["without_variables"]
    assert stable(found).splitlines() == stable(page).splitlines()


def test_page_names_the_exit_statuses(page: str) -> None:
    for status in (0, EXIT_FAILURE, click.UsageError.exit_code, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE):
        assert f"| {status}" in page
