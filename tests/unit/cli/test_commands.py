"""Parts of the command that need no broker: names, help, refusals and the words of failures."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bus.cli.failures import describe_failure
from bus.cli.main import cli
from bus.cli.options import _parse_properties, parse_properties
from bus.cli.records.produce import _read_lines
from bus.errors import BusError, ErrorCode, RootInUse

COMMANDS = ["serve", "topics", "produce", "consume", "groups", "offsets", "sql", "log", "cluster", "perf"]
COMMANDS += ["transactions", "completion"]


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=text, prog_name="bus")


def leaf_commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            found += leaf_commands(command, (*path, name))
        else:
            found.append((*path, name))
    return found


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.output for name in COMMANDS)


@pytest.mark.parametrize("path", leaf_commands(cli), ids=" ".join)  # type: ignore[arg-type]
def test_every_command_has_help_with_examples_that_begin_with_its_name(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    _, examples = result.output.split("\nExamples:\n")
    assert f"bus {' '.join(path)}" in examples
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize("path", leaf_commands(cli), ids=" ".join)  # type: ignore[arg-type]
def test_usage_has_brackets_around_what_may_be_left_out(path: tuple[str, ...]) -> None:
    usage = run(*path, "--help").output.partition("\n\n")[0].split("[OPTIONS]")[1].split()
    group: click.Command = cli
    for name in path:
        assert isinstance(group, click.Group)
        found = group.get_command(click.Context(group), name)
        assert found is not None
        group = found
    arguments = [one for one in group.params if isinstance(one, click.Argument)]
    assert [word.startswith("[") for word in usage] == [not one.required for one in arguments]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topcs"], "no such command 'topcs'; did you mean bus topics?"),
        (["topics", "lsit"], "no such command 'lsit'; did you mean bus topics list?"),
        (["zzz"], "; known: serve, topics"),
        (["consume"], "missing argument 'TOPIC...'"),
        (["consume", "t", "--from", "soon"], "expected beginning, end, an offset"),
        (["consume", "t", "--format", "%q"], "expected raw, json or a format"),
        (["consume", "t", "--fromm", "1"], "no such option '--fromm'; did you mean --from"),
        (["serve", "--port", "1"], "no such option '--port'; here it is --listen HOST:PORT"),
        (["topics", "list", "--bootstrap-server", "h:1"], "here it is --address HOST:PORT"),
        (["topics", "list", "--root", "r"], "here it is --address HOST:PORT"),
        (["log", "verify", "--address", "h:1"], "here it is --root FOLDER"),
        (["consume", "t", "--max-messages", "1"], "here it is --max N"),
        (["consume", "t", "--timeout-ms", "1"], "here it is --exit"),
        (["topics", "create", "t", "--replica-assignment", "0:a"], "expected broker ids as 0:1,1:2 for two partitions"),
        (["topics", "create", "t", "-p", "1", "--replica-assignment", "0"], "without --partitions and --replication-"),
        (["topics", "--list"], "list is a command: bus topics list"),
        (["--zzz"], "no such option '--zzz'."),
        (["consume", "t", "--group", "g", "--partition", "0"], "expected --group or --partition, found both"),
        (["consume", "t", "--group", "g", "--from", "5"], "expected --from beginning or end with --group"),
        (["offsets", "t", "--time", "12"], "expected earliest, latest, max"),
        (["topics", "create", "t", "--partitions", "0"], "--partitions"),
        (["topics", "create", "t", "--config", "x"], "expected KEY=VALUE, found 'x'"),
        (["topics", "alter", "t"], "expected --partitions, --config or --delete-config"),
        (["topics", "delete-records", "t"], "expected one of --offset, --all, --before and --offset-json-file"),
        (["topics", "delete-records", "t", "--all", "--offset", "1"], "expected one of --offset, --all"),
        (["topics", "delete-records", "--all"], "expected TOPIC or TOPIC/PARTITION, or --offset-json-file alone"),
        (["topics", "delete-records", "t", "--before", "soon"], "expected a time like 2013-01-31T12:00"),
        (["topics", "delete-records", "t/x", "--all"], "expected TOPIC or TOPIC/PARTITION, found 't/x'"),
        (["topics", "delete-records", "t", "--offset", "-1"], "--offset"),
        (["log", "roll"], "missing argument 'TOPIC[/PARTITION]'"),
        (["log", "clean", "t/x"], "expected TOPIC or TOPIC/PARTITION, found 't/x'"),
        (["produce", "t", "--json", "--key-separator", ":"], "expected --json or --key-separator, found both"),
        (["produce", "t", "/no/such/file"], "/no/such/file"),
        (["log", "dump", "t"], "expected TOPIC/PARTITION, found 't'"),
        (["log", "verify"], "expected TOPIC, TOPIC/PARTITION or --all"),
        (["log", "verify", "t", "--all"], "expected TOPIC, TOPIC/PARTITION or --all"),
        (["sql", " "], "expected a statement, found none"),
        (["sql", "select 1", "--at-version", "x"], "expected N, TOPIC=N or TOPIC/PARTITION=N, found 'x'"),
        (["serve", "--set", "x"], "expected KEY=VALUE"),
        (["groups", "list", "--state", "Alive"], "'Alive' is not one of"),
        (["cluster", "kill"], "missing argument 'BROKER...'"),
        (["cluster", "up", "--brokers", "0"], "--brokers"),
        (["cluster", "pause", "one"], "'one' is not a valid integer range"),
        (["groups", "describe"], "expected GROUP... or --all-groups"),
        (["groups", "describe", "g", "--all-groups"], "expected GROUP... or --all-groups"),
        (["groups", "describe", "g", "--verbose"], "--verbose is for --members"),
        (["groups", "create", "g", "--to-earliest"], "expected --topic, or --to-group alone"),
        (["groups", "create", "g", "--topic", "t"], "found none"),
        (["groups", "delete-offsets", "g"], "--topic"),
        (["groups", "delete-offsets", "g", "--topic", "t:x"], "--topic: expected TOPIC or TOPIC/0 or TOPIC/0,2"),
        (["transactions", "describe-producers", "t:x"], "TOPIC: expected TOPIC or TOPIC/0 or TOPIC/0,2, found 't:x'"),
        (["groups", "reset-offsets", "g", "--topic", "t"], "expected one of --to-earliest, --to-latest"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--shift-by", "0"], "found 2"),
        (["groups", "reset-offsets", "g", "--to-latest"], "expected --topic or --all-topics"),
        (["groups", "reset-offsets", "g", "--to-latest", "--topic", "t", "--all-topics"], "found both"),
        (["groups", "reset-offsets", "g", "--to-latest", "--topic", "t", "--execute", "--dry-run"], "found both"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--by-duration", "1h"], "like P1DT2H30M, found '1h'"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "soon"], "@MILLISECONDS, found 'soon'"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-version", "t=x"], "found 't=x'"),
        (["groups", "reset-offsets", "g", "--from-file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_command_that_is_typed_wrong_exits_with_2_and_one_line_that_says_why(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert [line.startswith("see: bus") for line in rest] == [True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["topics", "list", "--address", "nowhere"],
            "expected an address as host:port, found 'nowhere'",
        ),
        (["topics", "list", "--address", "127.0.0.1:1"], "start one with: bus serve"),
        (["sql", "select 1", "--root", "/no/such/root"], "/no/such/root"),
        (["log", "verify", "--all", "--root", "/no/such/root"], "/no/such/root"),
        (["serve", "--config", "/no/such/file"], "/no/such/file"),
        (["serve", "--listen", "x"], "listen: expected string (HOST:PORT, a port from 0 to 65535), found 'x'"),
        (["serve", "--set", "num.partition=3"], "did you mean num.partitions?"),
    ],
)
def test_failure_exits_with_1_and_one_line(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")


def test_debug_shows_where_a_failure_comes_from() -> None:
    result = run("sql", "select 1", "--root", "/no/such/root", "--debug")
    assert result.exception is not None
    assert "RootNotUsable" in type(result.exception).__name__


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BusError(ErrorCode.MESSAGE_TOO_LARGE, "too large"), "MESSAGE_TOO_LARGE: too large"),
        (
            BusError(ErrorCode.NETWORK_EXCEPTION, "gone"),
            "NETWORK_EXCEPTION: gone; is a broker running? "
            "start one with: bus serve, or a cluster with: bus cluster up",
        ),
        (
            BusError(ErrorCode.NETWORK_EXCEPTION, "no token could be obtained: https://idp: refused"),
            "NETWORK_EXCEPTION: no token could be obtained: https://idp: refused",
        ),
        (RootInUse("in use by broker 0"), "in use by broker 0"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "/x: permission denied"),
        (KeyError("a fault of the program"), None),
    ],
)
def test_users_mistake_has_a_line_and_a_fault_of_the_program_has_none(error: Exception, said: str | None) -> None:
    assert describe_failure(error) == said


def test_log_settings_are_checked_and_named(tmp_path: object) -> None:
    file = f"{tmp_path}/logging.toml"
    for text, said in [
        ('[logging]\nformat = "xml"\n', "expected a log format of text or json, found 'xml'"),
        ('[loging]\nlevel = "INFO"\n', "found loging"),
        ("[logging\n", "expected TOML"),
        ('[logging]\nlevels = "x"\n', "expected [logging.levels]"),
    ]:
        with open(file, "w") as stream:
            stream.write(text)
        result = run("serve", "--log-config", file)
        assert result.exit_code == 1
        assert said in result.stderr
        assert file in result.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_BUS_COMPLETE" in result.output


class _Pieces:
    """An input that gives what it has, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"a\nb"], [[b"a"], [b"b"]]),
        ([b"a", b"b\nc", b"\n"], [[b"ab"], [b"c"]]),
        ([b"\n\n"], [[b"", b""]]),
        ([b"a\r\nb\r\n"], [[b"a", b"b"]]),
        ([b"a\r", b"\nb\n"], [[b"a", b"b"]]),
        ([], []),
    ],
)
def test_lines_are_whole_however_the_input_comes_in_pieces(pieces: list[bytes], lines: list[list[bytes]]) -> None:
    assert [found for found, _ in _read_lines(_Pieces(*pieces))] == lines  # type: ignore[arg-type]


def test_properties_are_settings_of_the_producer_by_kafkas_names() -> None:
    assert parse_properties(["linger.ms=20", "enable.idempotence=False", "client.id=a=b"]) == {
        "linger_ms": 20,
        "enable_idempotence": False,
        "client_id": "a=b",
    }
    refused = run("produce", "t", "-X", "linger_ms")
    assert refused.exit_code == 2
    assert "expected KEY=VALUE, found 'linger_ms'" in refused.output
    unknown = run("produce", "t", "-X", "lingerms=5")
    assert unknown.exit_code == 1
    assert "did you mean 'linger_ms'?" in unknown.output


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("bootstrap.servers=b:9094", "found bootstrap.servers (give --address)"),
        ("ssl.ca.locaton=a.pem", "found ssl.ca.locaton (did you mean ssl_ca_location?)"),
        ("ssl.truststore.password=hush", "found ssl.truststore.password (keys and certificates are PEM"),
        ("sasl.kerberos.service.name=kafka", "(there is no Kerberos: take SCRAM-SHA-512"),
        ("ssl.enabled.protocols=TLSv1.3", "(gRPC chooses among TLS 1.2 and 1.3"),
        ("acks=all\nclient.id=x", "found acks, client.id"),
        ("# one\nacks=\\\nall\nhush", "client.properties, line 4: expected KEY=VALUE, found a line without ="),
    ],
)
def test_file_of_kafkas_clients_is_refused_with_what_to_do(lines: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(lines)
    refused = run("topics", "list", "--command-config", str(file))
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert "hush" not in refused.stderr


def test_property_ends_its_name_where_java_has_it() -> None:
    lines = ["a.b = 1=2", "c: 3", "! no", "d 4", "e=", "f=g \\", " h"]
    assert _parse_properties(Path("x"), lines) == {"a.b": "1=2", "c": "3", "d": "4", "e": "", "f": "g h"}


def test_a_group_is_a_text_that_is_not_blank() -> None:
    result = run("consume", "t", "--group", " ")
    assert result.exit_code == 2
    assert "--group: expected a text that is not blank, found ' '" in result.stderr


def test_a_file_with_settings_that_cannot_be_read_is_refused_and_nothing_of_it_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a key without backslashes\nssl.keystore.key=-----BEGIN PRIVATE KEY-----\nhush\n")
    file.chmod(0o600)
    refused = run("topics", "list", "--command-config", str(file))
    assert refused.exit_code == 2
    assert "expected KEY=VALUE, found a line without =" in refused.output
    assert "hush" not in refused.output


@pytest.mark.parametrize("options", [["--command-config"], ["--profile", "prod"]])
def test_a_named_pipe_without_a_writer_is_no_file_of_settings(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(pipe))
    refused = run("topics", "list", *options, *([str(pipe)] if len(options) == 1 else []))
    assert refused.exit_code == 2
    assert f"{pipe}: expected a regular file, found a named pipe" in refused.stderr


def test_options_in_conflict_with_the_environment_are_told_with_both_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("ssl.ca.location=ca.pem\n")
    monkeypatch.setenv("BUS_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    for options, origin in (
        (["--command-config", str(file)], f"--command-config {file}"),
        (["-X", "ssl.ca.location=ca.pem"], "--property"),
    ):
        said = run("topics", "list", *options).stderr
        assert f"ssl_ca_location is from {origin}; security_protocol is from the environment, BUS_SEC" in said


def test_secret_on_the_command_line_is_warned_of_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_properties(["sasl.password=hush", "linger.ms=5", "client.id=007"]) == {
        "sasl_password": "hush",
        "linger_ms": 5,
        "client_id": "007",
    }
    said = capsys.readouterr().err
    assert "warning: sasl.password is on the command line" in said
    assert "hush" not in said
    result = CliRunner().invoke(cli, ["serve", "--set", "ssl.key.password=hush", "--set", "no.such.key=1"])
    assert "warning: ssl.key.password is on the command line" in result.stderr
    assert "hush" not in result.stderr
