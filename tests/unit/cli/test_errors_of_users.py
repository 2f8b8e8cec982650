"""Answers to a user who errs: the right word, option, address, variable or folder, and no internals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from bus.cli.main import cli
from bus.client.config.sources import warnings_of_variables
from bus.errors import show_range


def answer(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    outcome = CliRunner().invoke(cli, arguments, env=dict(environment or {}))
    assert outcome.exit_code in (1, 2), outcome.output
    assert isinstance(outcome.exception, SystemExit), "an error of the user is no traceback"
    return outcome.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lag", "did you mean bus groups describe?"),
        ("groups lag", "did you mean bus groups describe?"),
        ("repair orders", "did you mean bus log repair?"),
        ("consumer-groups --list", "did you mean bus groups?"),
        ("topics rm orders", "did you mean bus topics delete?"),
        ("topcs list", "did you mean bus topics?"),
        ("groups describe --group billing", "GROUP is written without an option: bus groups describe GROUP"),
        ("topics delete --topic orders", "TOPIC is written without an option: bus topics delete TOPIC"),
        ("acls add --allow User:a", "here it is --allow-principal"),
        ("topics alter orders --set a=b", "here it is --config KEY=VALUE"),
        ("groups reset-offsets g --to-erliest", "did you mean --to-earliest"),
        ("completion tcsh", "expected a shell that can be completed, bash, zsh, fish; found 'tcsh'"),
        ("topics list --address 127.0.0.1:80000", "found '127.0.0.1:80000' (ports are 1 to 65535)"),
        ("serve --listen 127.0.0.1:80000", "a port from 0 to 65535), found '127.0.0.1:80000'"),
        ("sql x --root /proc/x", "expected a bus root"),
    ],
)
def test_wrong_word_is_answered_with_the_right_one(typed: str, meant: str) -> None:
    assert meant in answer(*typed.split())


def test_words_that_are_not_alike_are_not_suggested() -> None:
    assert "did you mean" not in answer("acls", "list", "--operation", "Read")
    assert "log" not in answer("lag")


def test_root_that_nobody_named_is_said_with_how_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = {"BUS_ADDRESS": "127.0.0.1:1"}
    for command in (["sql", "SELECT 1"], ["log", "verify", "orders"]):
        assert "name the root by --root or BUS_ROOT" in answer(*command, environment=nowhere)
        assert "name the root" not in answer(*command, "--root", str(tmp_path / "named"), environment=nowhere)


def test_broker_cannot_make_its_folder_where_there_are_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which would stay with the process of the tests.
    monkeypatch.setattr("bus.runtime.logs.configure_logging", lambda **_: None)
    monkeypatch.setattr("bus.broker.tune_process", lambda **_: None)
    assert "found none, and none can be made there" in answer("serve", "--root", "/proc/x", "--listen", "127.0.0.1:0")


def test_variables_that_have_no_effect_are_told_and_those_of_others_are_let_be() -> None:
    wrong = {"BUS_ADRESS": "", "BUS_BOOTSTRAP_SERVERS": "", "BUS_SASL_USER": "", "BUS_SSL_NOTHING": ""}
    right = {"BUS_ADDRESS": "", "BUS_ROOT": "", "BUS_FORMAT": "", "BUS_SASL_USERNAME": "", "BUS_SPARK_JARS": ""}
    of_others = {"BUS_SERVICE_HOST": "", "BUS_PORT_9094_TCP": "", "BUS_CHAOS_SEEDS": "", "BUSINESS": ""}
    found = warnings_of_variables({**wrong, **right, **of_others})
    assert [(name, text.partition("did you mean ")[2]) for name, text in found.items()] == [
        ("BUS_ADRESS", "BUS_ADDRESS?"),
        ("BUS_BOOTSTRAP_SERVERS", "BUS_ADDRESS?"),
        ("BUS_SASL_USER", "BUS_SASL_USERNAME?"),
        ("BUS_SSL_NOTHING", ""),
    ]
    said = answer("topics", "list", environment={"BUS_ADRESS": "x:1", "BUS_ADDRESS": "nowhere"})
    assert said.startswith("warning: BUS_ADRESS has no effect")


def test_format_of_listings_is_taken_from_the_environment() -> None:
    assert "'xml' is not one of" in answer("topics", "list", environment={"BUS_FORMAT": "xml"})


@pytest.mark.parametrize(
    ("typed", "incomplete", "among"),
    [
        ("topics create orders --config", "retention.", "retention.ms="),
        ("topics alter orders --delete-config", "retention.", "retention.ms"),
        ("config", "num.par", "num.partitions"),
        ("config --topic orders", "cleanup", "cleanup.policy"),
        ("serve --set", "num.par", "num.partitions="),
        ("acls add --operation", "describe", "DescribeConfigs"),
        ("acls check alice", "wr", "Write"),
        ("quotas set", "prod", "producer_byte_rate="),
        ("quotas delete", "prod", "producer_byte_rate"),
        ("completion", "", "fish"),
    ],
)
def test_keys_operations_and_quotas_are_completed(typed: str, incomplete: str, among: str) -> None:
    completed = ShellComplete(cli, {}, "bus", "_BUS_COMPLETE").get_completions(typed.split(), incomplete)
    assert among in [one.value for one in completed]


def test_every_command_and_group_answers_a_wrong_name_in_a_line() -> None:
    def walk(command: click.Command, path: list[str]) -> None:
        said = answer(*path, *(["nonsense"] if isinstance(command, click.Group) else []), "--nonsense-option")
        assert said.startswith("error: "), (path, said)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, [*path, name])

    walk(cli, [])


@pytest.mark.parametrize(("low", "high", "shown"), [(0, 3, "from 0 to 3"), (0, 0, "that is 0"), (0, -1, "none yet")])
def test_range_of_one_number_is_that_number(low: int, high: int, shown: str) -> None:
    assert shown in show_range(low, high)
