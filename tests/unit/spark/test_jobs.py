"""Errors that a job reports, and the reading of its arguments."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.spark.jobs import (
    add_bootstrap_argument,
    add_root_argument,
    broker_options,
    first_line,
    open_admin,
    print_rows,
    tell,
    timestamp_ms,
)

IN_A_TASK = """[PYTHON_DATA_SOURCE_ERROR] Failed to read: Traceback (most recent call last):
  File "/srv/bus/source.py", line 5, in read
    raise ValueError("the first")
ValueError: the first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/bus/source.py", line 7, in read
    raise _unknown("expected a topic")
           ^^^^^^^^
bus.errors.BusError: UNKNOWN_TOPIC_OR_PARTITION: expected a topic, found 'nope'
 SQLSTATE: 38000
\tat org.apache.spark.Somewhere(Some.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (IN_A_TASK, "BusError: UNKNOWN_TOPIC_OR_PARTITION: expected a topic, found 'nope'"),
        ("An error occurred while calling o1.load.\n: java.io.IOException: no;\n\tat a.B", "java.io.IOException: no"),
        ("[NOT_FOUND] no such path;\n'Project [*]", "[NOT_FOUND] no such path"),
        ("An exception was thrown:\nTraceback (most recent call last):\n  File 'cut", "An exception was thrown:"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_is_one_line_without_plans_and_stacks(text: str, expected: str) -> None:
    assert first_line(RuntimeError(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1970-01-01T00:00:01Z", 1_000), ("1970-01-01", 0), ("1970-01-01T01:00:00.5+01:00", 500)],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, expected: int) -> None:
    assert timestamp_ms(text) == expected


def test_text_that_is_no_time_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time such as 2026-11-21T09:00:00Z, found 'soon'"):
        timestamp_ms("soon")


@pytest.mark.parametrize(
    ("environment", "arguments", "found"),
    [
        ({}, [], ("./bus-data", "127.0.0.1:9094")),
        ({"BUS_ROOT": "/srv/bus", "BUS_ADDRESS": "h:1"}, [], ("/srv/bus", "h:1")),
        ({"BUS_ROOT": "/srv/bus", "BUS_ADDRESS": "h:1"}, ["--root", "r", "--address", "h:2"], ("r", "h:2")),
        ({}, ["--bootstrap", "h:2"], ("./bus-data", "h:2")),
        ({}, ["--profile", "prod"], ("./bus-data", "p:1,p:2")),
        ({"BUS_PROFILE": "prod"}, [], ("./bus-data", "p:1,p:2")),
        ({"BUS_PROFILE": "prod", "BUS_ADDRESS": "h:1"}, [], ("./bus-data", "h:1")),
        ({"BUS_PROFILE": "prod"}, ["--profile", "bare"], ("./bus-data", "127.0.0.1:9094")),
        ({}, ["--address", "127.0.0.1:9094", "--profile", "prod"], ("./bus-data", "127.0.0.1:9094")),
        ({}, ["--profile", "prod", "--address", "h:2"], ("./bus-data", "h:2")),
    ],
)
def test_root_and_address_are_found_as_by_the_command_line(
    environment: dict[str, str],
    arguments: list[str],
    found: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("BUS_ROOT", "BUS_ADDRESS", "BUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(profiles_in(tmp_path)))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_root_argument(parser)
    add_bootstrap_argument(parser)
    options = parser.parse_args(arguments)
    assert (options.root, options.bootstrap) == found


def test_profile_of_a_job_is_that_of_its_administrator_and_of_its_queries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BUS_ADDRESS", "BUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(profiles_in(tmp_path)))
    parser = argparse.ArgumentParser()
    add_bootstrap_argument(parser)
    options = parser.parse_args(["--profile", "prod"])
    assert broker_options(options) == {"bus.bootstrap.servers": "p:1,p:2", "bus.profile": "prod"}
    assert broker_options(options, "other:1") == {"bus.bootstrap.servers": "other:1", "bus.profile": "prod"}
    assert broker_options(parser.parse_args([])) == {"bus.bootstrap.servers": "127.0.0.1:9094"}
    with open_admin(options) as admin:
        assert admin._config.sasl_password == "hush"
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--profile", "prd"])
    assert "argument --profile: " in capsys.readouterr().err
    monkeypatch.setenv("BUS_PROFILE", "prd")
    with pytest.raises(SystemExit, match="2"):
        add_bootstrap_argument(argparse.ArgumentParser())
    assert "expected one of its profiles, bare, prod, found 'prd'" in capsys.readouterr().err


def profiles_in(folder: Path) -> Path:
    path = folder / "config.toml"
    path.write_text(
        '[prod]\nbootstrap.servers = ["p:1", "p:2"]\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        'sasl.mechanism = "SCRAM-SHA-512"\nsasl.username = "alice"\nsasl.password = "hush"\n[bare]\n'
    )
    path.chmod(0o600)
    return path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_job_prints_controls_no_terminal_and_is_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "a\x1b[31m\u202eb"
    frame: Any = SimpleNamespace(columns=["group"], collect=lambda: [(hostile,)])
    print_rows(frame, csv=True)
    tell(hostile)
    assert capsys.readouterr() == (f"group\n{hostile}\n", f"{hostile}\n")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    print_rows(frame, csv=True)
    print_rows(frame, csv=False)
    tell(hostile)
    print_rows(SimpleNamespace(columns=["a\nb\x1b"], collect=lambda: [(1,)]), csv=False)  # type: ignore[arg-type]
    assert sys.stdout.getvalue().endswith("\na\\nb\\x1b\n1\n")  # type: ignore[attr-defined]
    written: Any = sys.stdout, sys.stderr
    for stream in written:
        assert r"a\x1b[31m\u202eb" in stream.getvalue()
        assert not {"\x1b", "\u202e"} & set(stream.getvalue())
