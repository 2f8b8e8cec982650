"""docs/cli.md says what the commands are and print: its help blocks and examples are those of this very code."""

from __future__ import annotations

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
    """`python tools/cli_reference.py` writes it."""
    leaves = [name for name, command in TOOL["commands"]() if not isinstance(command, click.Group)]
    assert sorted(TOOL["named_in"](page)) == sorted(leaves)
    assert TOOL["with_help"](page) == page


def test_examples_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    root = tmp_path / "bus-data"
    with BrokerProcess(root, *TOOL["SERVE_OPTIONS"]) as broker:
        found = TOOL["with_output"](page, TOOL["run_in"](broker.address, str(root)))
    stable = TOOL["without_variables"]
    assert stable(found).splitlines() == stable(page).splitlines()


def test_page_names_the_exit_statuses(page: str) -> None:
    for status in (0, EXIT_FAILURE, click.UsageError.exit_code, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE):
        assert f"| {status}" in page
