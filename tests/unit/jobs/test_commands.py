"""Errors that a job reports, the options that all jobs have, and what they print."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bus.cli.commands import BusCommand, NoPandas
from bus.cli.main import cli
from bus.cli.options import root_option
from bus.jobs.commands import JOBS, first_line, print_rows, run_job
from bus.jobs.options import Brokers, brokers_options
from bus.spark.jobs import tell

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
    assert run_reached(*arguments).output == f"{found!r}\n"


def test_profile_of_a_job_is_that_of_its_administrator_and_of_its_queries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BUS_CONFIG_FILE", str(profiles_in(tmp_path)))
    brokers = Brokers("p:1,p:2", "prod")
    assert brokers.options() == {"bus.bootstrap.servers": "p:1,p:2", "bus.profile": "prod"}
    assert brokers.at(None) == brokers
    assert brokers.at("other:1").options() == {"bus.bootstrap.servers": "other:1", "bus.profile": "prod"}
    assert Brokers("127.0.0.1:9094").options() == {"bus.bootstrap.servers": "127.0.0.1:9094"}
    with brokers.open_admin() as admin:
        assert admin._config.sasl_password == "hush"


def test_profile_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BUS_PROFILE", raising=False)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(profiles_in(tmp_path)))
    named = run_reached("--profile", "prd")
    monkeypatch.setenv("BUS_PROFILE", "prd")
    for refused in (named, run_reached()):
        assert refused.exit_code == 2
        assert "'--profile'" in refused.stderr
        assert "expected one of its profiles, bare, prod, found 'prd'" in refused.stderr


@click.command(cls=BusCommand)
@root_option()
@brokers_options
def reached(root: str, brokers: Brokers) -> None:
    click.echo((root, brokers.address))


def run_reached(*arguments: str) -> Result:
    return CliRunner().invoke(reached, arguments)


@pytest.mark.parametrize("name", JOBS)
def test_no_option_of_a_job_takes_a_secret_of_the_connection(name: str) -> None:
    """Spark would show it: the options of a query are in its plans, and so on the page and in the event log."""
    ended = CliRunner().invoke(cli, ["jobs", "run", name, "-X", "sasl.password=hush"], prog_name="bus")
    assert (ended.exit_code, "no such option" in ended.stderr) == (2, True)


def test_user_may_have_pandas_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [NoPandas, *sys.meta_path])
    monkeypatch.setattr("bus.spark.sessions.session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    assert run_job("job", lambda _: int(NoPandas in sys.meta_path)) == 0


def test_paths_of_the_jobs_are_files_of_the_package() -> None:
    for part, name in (("program", "__main__.py"), ("conf", "spark-defaults.conf")):
        found = Path(CliRunner().invoke(cli, ["jobs", "path", part], prog_name="bus").stdout.strip())
        assert (found.name, found.is_file()) == (name, True)


def test_jars_are_those_of_delta_with_commas_between(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bus.jobs.commands.check_jars", lambda folder: [folder / "a.jar", folder / "b.jar"])
    monkeypatch.setenv("BUS_SPARK_JARS", str(tmp_path))
    found = CliRunner().invoke(cli, ["jobs", "path", "jars"], prog_name="bus").stdout
    assert found == f"{tmp_path}/a.jar,{tmp_path}/b.jar\n"
    monkeypatch.setattr("bus.jobs.commands.jars_folder", lambda: None)
    without = CliRunner().invoke(cli, ["jobs", "path", "jars"], prog_name="bus")
    assert (without.exit_code, "expected the folder of Delta's jars in BUS_SPARK_JARS" in without.stderr) == (1, True)


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
    monkeypatch.setenv("NO_COLOR", "1")
    hostile = "a\x1b[31m\u202eb"
    frame: Any = SimpleNamespace(columns=["group"], collect=lambda: [(hostile,)])
    print_rows(frame, is_csv=True)
    tell(hostile)
    assert capsys.readouterr() == (f"group\n{hostile}\n", f"{hostile}\n")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    print_rows(frame, is_csv=True)
    print_rows(frame, is_csv=False)
    tell(hostile)
    print_rows(SimpleNamespace(columns=["a\nb\x1b"], collect=lambda: [(1,)]), is_csv=False)  # type: ignore[arg-type]
    assert sys.stdout.getvalue().endswith("\na\\nb\\x1b\n1\n")  # type: ignore[attr-defined]
    written: Any = sys.stdout, sys.stderr
    for stream in written:
        assert r"a\x1b[31m\u202eb" in stream.getvalue()
        assert not {"\x1b", "\u202e"} & set(stream.getvalue())
