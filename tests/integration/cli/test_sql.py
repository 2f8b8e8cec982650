"""`bus sql` over tables that were written by hand: what is printed, what is left out, the prompt, and Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

import bus.sql
from bus.cli.main import cli
from bus.cli.sql.sql_prompt import SqlCompleter, SqlShell, is_complete
from bus.platform.signals import signals_as_interrupts
from tests.support.hand_written_root import HandWrittenRoot

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE (a.range * b.range) % 7 = 3"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = HandWrittenRoot(tmp_path_factory.mktemp("sql") / "root")
    root.create_topic("flights")
    root.create_topic("my-topic.v1")
    root.append("flights", 0, (b"a", b'{"carrier":"UA"}'), (b"b", b"no json"))
    root.create_view("delays", "flights", "carrier STRING, delay INT")
    return root.folder


def run(root: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["sql", "--root", str(root), *arguments], input=text, prog_name="bus")


# ------------------------------------------------------------------ rows


def test_columns_of_one_name_are_all_there_and_json_says_which_is_which(root: Path) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS A"
    as_json = run(root, query, "--format", "json")
    assert json.loads(as_json.stdout) == [{"a": 1, "a_2": 2, "a_1": 3, "A": 4}]
    assert as_json.stderr == "columns of one name: JSON has the later ones under names of their own: a as a_2\n"
    assert run(root, query, "--format", "csv").output == "a,a,a_1,A\n1,2,3,4\n"
    assert run(root, query, "--format", "table").output.split() == ["a", "a", "a_1", "A", "1", "2", "3", "4"]


def test_csv_has_json_where_a_value_is_nested(root: Path) -> None:
    query = "SELECT {'a': [1, NULL], 'b': 'x\"y'} AS s, [true] AS l, true AS b, 'NaN'::DOUBLE AS n, NULL AS z"
    header, row = csv.reader(io.StringIO(run(root, query, "--format", "csv").stdout))
    assert header == ["s", "l", "b", "n", "z"]
    assert (json.loads(row[0]), json.loads(row[1]), row[2:]) == (
        {"a": [1, None], "b": 'x"y'},
        [True],
        ["true", "NaN", ""],
    )


def test_every_kind_of_value_is_json(root: Path) -> None:
    query = (
        "SELECT INTERVAL '14 months 3 seconds' AS i, 'NaN'::DOUBLE AS n, -'inf'::FLOAT AS f, "
        "1.50::DECIMAL(10, 2) AS d, sum(1) AS s, "
        "TIMESTAMPTZ '12345-01-01' AS t, 'infinity'::TIMESTAMP AS inf, [DATE '20000-02-29'] AS l, "
        "repeat('x', 1000000) AS v"
    )
    (row,) = json.loads(run(root, query, "--format", "json").stdout)
    assert len(row.pop("v")) == 1_000_000
    assert row == {
        "i": "1 year 2 months 00:00:03",
        "n": "NaN",
        "f": "-Infinity",
        "d": 1.5,
        "s": 1,
        "t": "+12345-01-01T00:00:00Z",
        "inf": "infinity",
        "l": ["+20000-02-29"],
    }


def test_a_table_has_a_limit_and_tells_how_many_rows_there_are(root: Path) -> None:
    query = "SELECT range AS n FROM range(30000)"
    table = run(root, query, "--format", "table")
    assert table.stdout.split() == ["n", *map(str, range(1_000))]
    assert table.stderr == "30,000 rows, of which the first 1,000 are shown: see --limit\n"
    assert len(run(root, query, "--format", "table", "--limit", "all").stdout.splitlines()) == 30_001
    few = run(root, query, "--format", "table", "--limit", "0", "--timing")
    assert few.stdout == "n\n"
    assert few.stderr.startswith("30,000 rows, of which the first 0 are shown: see --limit\n30,000 rows in ")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_json_and_csv_have_all_rows_but_for_a_limit(root: Path, form: str) -> None:
    query = "SELECT range AS n FROM range(30000)"
    assert len(run(root, query, "--format", form).stdout.splitlines()) == 30_000 + (form == "csv")
    limited = run(root, query, "--format", form, "--limit", "2500")
    assert (len(limited.stdout.splitlines()), limited.stderr) == (2_500 + (form == "csv"), "")
    assert run(root, query, "--limit", "few").exit_code == 2


def test_a_statement_comes_from_standard_input_by_a_dash_or_by_itself(root: Path) -> None:
    for arguments in (["-"], []):
        assert json.loads(run(root, *arguments, text="SELECT 1 AS a;\n").stdout) == [{"a": 1}]
    assert run(root, text="\n").exit_code == 2
    several = run(root, text="SELECT 1;\nSELECT 2;\n")
    assert (several.exit_code, several.stdout) == (1, "")
    assert "found 2 of them" in several.stderr


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM flihgts", "did you mean flights?"),
        ("SELECT * FROM DELAY", "did you mean delays?"),
        ("SELECT * FROM bus.group_ofsets", "did you mean group_offsets or groups or group_members?"),
        ('SELECT * FROM "my-topic.v2"', 'did you mean "my-topic.v1"?'),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest_topics_and_views(
    root: Path, statement: str, said: str
) -> None:
    lines = run(root, statement).stderr.splitlines()
    assert "does not exist" in lines[0]
    assert lines[1:] == [
        said,
        "views: groups, group_members, group_offsets, lag, topics, partitions, versions, log_maintenance, "
        "brokers, replicas, elections, reassignments, transactions, transaction_history, quotas, audit, acls, "
        "effective_acls, delays",
        "topics: __cluster_metadata, flights, my-topic.v1",
    ]


def test_of_many_topics_a_message_names_some(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(50)]
    told = bus.sql.connection.suggestions("zzz", {"topics": names})
    assert told == f"\ntopics: {', '.join(names[:30])}, and 20 more: SHOW TABLES"


# ------------------------------------------------------------------ Ctrl-C


@pytest.mark.parametrize(
    "statement", [ENDLESS, f"EXPLAIN ANALYZE {ENDLESS}", f"PIVOT (SELECT ({ENDLESS}) AS n) ON n USING count(*)"]
)
def test_ctrl_c_ends_a_statement_and_the_connection_goes_on(root: Path, statement: str) -> None:
    with bus.sql.connect(str(root)) as connection:
        assert connection.sql("SELECT 1").fetchall() == [(1,)]
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            connection.sql(statement).fetchall()
        timer.join()
        assert connection.sql("SELECT count(*) FROM flights").fetchall() == [(2,)]


def test_ctrl_c_ends_the_command_with_130_and_without_a_word(root: Path) -> None:
    command = [sys.executable, "-m", "bus", "sql", ENDLESS, "--root", str(root), "--timing"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=take_interrupts)
    wait_for_work(program.pid)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=100) == (b"", b"")
    assert program.returncode == 130


def take_interrupts() -> None:
    """Also of a test run that was started in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for_work(pid: int) -> None:
    """Until the process has worked for longer than a start takes."""
    while sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) < 1.5 * os.sysconf("SC_CLK_TCK"):
        select.select([], [], [], 0.02)


# ------------------------------------------------------------------ prompt


@pytest.fixture
def shell(root: Path) -> Iterator[SqlShell]:
    with bus.sql.connect(str(root)) as connection:
        yield SqlShell(connection, form="csv", limit=None, is_timed=False)


def test_the_shell_answers_statements_and_goes_on_after_failures(
    shell: SqlShell, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("SELECT count(*) AS n FROM flights;", "SELEC 1;", "COPY flights TO 'x';", " ; ", "SELECT 2 AS n;"):
        shell.handle(line)
    found = capsys.readouterr()
    assert found.out == "n\n2\nn\n2\n"
    assert [line.split(":")[0] for line in found.err.splitlines() if line.startswith("error")] == ["error", "error"]
    assert not shell.is_over


def test_ctrl_c_ends_a_statement_and_sigterm_the_prompt(
    shell: SqlShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_signal(number: str) -> None:
        signal.raise_signal(signal.Signals[number])

    monkeypatch.setattr(shell.connection, "sql", raise_signal)
    with signals_as_interrupts():
        shell.handle("SIGINT")
        assert capsys.readouterr().err == "interrupted\n"
        with pytest.raises(KeyboardInterrupt):
            shell.handle("SIGTERM")


def test_the_shell_knows_its_commands(shell: SqlShell, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (".tables f*", ".tables", '.columns "my-topic.v1"', ".columns bus.lag", ".schema my-topic.v1"):
        shell.handle(line)
    found = capsys.readouterr().out
    assert found.startswith("topics: flights\nviews: groups,")
    assert found.count("\nkey_bytes") == 2
    assert "\nlag " in found
    for line in (".format json", ".limit 1", ".timing on", "FROM range(3);"):
        shell.handle(line)
    found_last = capsys.readouterr()
    assert found_last.out == '[{"range": 0}]\n'
    assert found_last.err.startswith("1 row in ")
    for line in (".tabels", ".format xml", ".limit few", ".timing", ".columns"):
        shell.handle(line)
    assert capsys.readouterr().err.splitlines() == [
        "error: no such command '.tabels'; did you mean .tables?",
        "error: expected table, json, csv, found 'xml'",
        "error: expected a number of rows, or all, found 'few'; the usual is 1,000",
        "error: expected on or off, found ''",
        "error: expected the name of a topic or view: .columns flights",
    ]
    shell.handle(".help")
    told = capsys.readouterr().out
    assert all(name in told for name in shell.commands)
    shell.handle(".quit")
    assert shell.is_over


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM fl", ["flights"]),
        ("SELECT * FROM my", ['"my-topic.v1"']),
        ('SELECT * FROM "my', ['"my-topic.v1"']),
        ("SELECT * FROM flights WHERE key_", ["key_bytes"]),
        ("SELECT * FROM delays WHERE carr", ["carrier"]),
        ("SELECT * FROM group_m", ["group_members"]),
        ("SEL", ["SELECT"]),
        (".ta", [".tables"]),
        ("SELECT ", []),
    ],
)
def test_tab_completes_what_there_is(shell: SqlShell, text: str, found: list[str]) -> None:
    completions = SqlCompleter(shell).get_completions(Document(text), CompleteEvent(completion_requested=True))
    assert [completion.text for completion in completions] == found


@pytest.mark.parametrize(
    ("text", "is_whole"), [("SELECT 1", False), ("SELECT 1; ", True), (".tables", True), (" ", True)]
)
def test_enter_runs_a_statement_that_is_whole(text: str, is_whole: bool) -> None:
    assert is_complete(text) is is_whole


def test_the_prompt_on_a_terminal_keeps_history_and_ends_with_ctrl_d(root: Path, tmp_path: Path) -> None:
    terminal, line = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "PAGER": ""}
    environment["PROMPT_TOOLKIT_NO_CPR"] = "1"
    command = [sys.executable, "-m", "bus", "sql", "--root", str(root)]
    program = subprocess.Popen(
        command,
        stdin=line,
        stdout=line,
        stderr=line,
        env=environment,
        start_new_session=True,
        preexec_fn=take_interrupts,
    )
    os.close(line)
    try:
        wait_for_text(terminal, "bus>")
        os.write(terminal, b"SELECT 40 + count(*)\r")
        wait_for_text(terminal, "->")
        os.write(terminal, b"FROM flights;\r")
        wait_for_text(terminal, "42\r\n", then="bus>")  # before the prompt, the terminal would keep Ctrl-D to itself
        os.write(terminal, b"\x04")
        assert program.wait(timeout=100) == 0
    finally:
        program.kill()
        program.wait()
        os.close(terminal)
    history = tmp_path / "bus" / "sql_history"
    assert "+SELECT 40 + count(*)\n+FROM flights;\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def wait_for_text(terminal: int, text: str, then: str = "") -> None:
    """Until it is there, and `then` somewhere behind it."""
    found = ""
    while then not in (shown := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found)).partition(text)[2] or text not in shown:
        assert select.select([terminal], [], [], 30)[0], found
        found += os.read(terminal, 10_000).decode(errors="replace")


def test_a_prompt_is_refused_where_there_is_no_terminal_to_print_it_on(root: Path) -> None:
    terminal, line = pty.openpty()
    command = [sys.executable, "-m", "bus", "sql", "--root", str(root)]
    refused = subprocess.run(command, stdin=line, capture_output=True, text=True, timeout=100, check=False)
    os.close(terminal)
    os.close(line)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "standard output on a terminal" in refused.stderr


@pytest.mark.parametrize("word", ["exit", "quit", "EXIT;", r"\q"])
def test_words_of_other_prompts_end_this_one_too(shell: SqlShell, word: str) -> None:
    assert is_complete(word)
    shell.handle(word)
    assert shell.is_over


@pytest.mark.parametrize("option", ["--at-version", "--at-offset"])
@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("flihgts=0", "found 'flihgts'; topics there: flights"),
        ("flights/9=0", "expected a partition of flights that is 0"),
    ],
)
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_bound_of_what_is_not_there_is_refused(root: Path, option: str, bound: str, said: str, engine: str) -> None:
    result = run(root, "SELECT 1", option, bound, "--engine", engine)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
