from __future__ import annotations

import ast
import contextlib
import csv
import importlib
import io
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bus.cli
from bus.cli.failures import write_error
from bus.cli.output import (
    Column,
    Columns,
    Kind,
    cell_text,
    echo,
    human_bytes,
    human_time,
    write_data,
    write_heading,
    write_listing,
)

COLUMNS: Columns[Any] = (
    Column("topic"),
    Column("latest_offset", kind=Kind.NUMBER),
    Column("size", kind=Kind.BYTES),
)
ROWS = [("orders", 5, 2048), ("pay,ments", None, 7)]


def test_table_aligns_numbers_right_and_names_columns_in_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing(COLUMNS, ROWS, "table")
    assert capsys.readouterr().out == (
        "TOPIC      LATEST-OFFSET     SIZE\n"
        "orders                 5  2.0 KiB\n"
        "pay,ments              -      7 B\n"
    )  # fmt: skip


def test_json_has_plain_numbers_and_null_and_is_the_form_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing(COLUMNS, ROWS, None)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "latest_offset": 5, "size": 2048},
        {"topic": "pay,ments", "latest_offset": None, "size": 7},
    ]


def test_csv_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing(COLUMNS, ROWS, "csv")
    assert capsys.readouterr().out == 'topic,latest_offset,size\norders,5,2048\n"pay,ments",,7\n'


def test_empty_listing_is_an_empty_array_and_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing(COLUMNS, [], "json")
    write_listing(COLUMNS, [], "table")
    assert capsys.readouterr().out == "[]\nTOPIC  LATEST-OFFSET  SIZE\n"


def test_control_characters_of_a_value_do_not_reach_the_terminal() -> None:
    assert cell_text(Column("value"), "a\n\x1b[31mb") == "a\\n\\x1b[31mb"
    assert cell_text(Column("value"), "a\u202eb\u2066c") == "a\\u202eb\\u2066c"


def test_wide_characters_keep_the_columns_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing((Column("name"), Column("n", kind=Kind.NUMBER)), [("日本", 1), ("abcd", 2)], "table")
    assert capsys.readouterr().out.splitlines()[1:] == ["日本  1", "abcd  2"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_time_for_people_has_milliseconds_and_survives_the_end_of_the_calendar() -> None:
    assert human_time(1357041600250) == "2013-01-01T12:00:00.250Z"
    assert human_time(-1) == "-"
    assert human_time(2**60) == f"@{2**60}"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_json_and_csv_are_written_as_the_rows_come(capsys: pytest.CaptureFixture[str], form: str) -> None:
    seen: list[str] = []

    def rows() -> Iterator[tuple[int]]:
        for number in range(2_500):
            if number == 2_400:
                seen.append(capsys.readouterr().out)
            yield (number,)

    write_listing([Column("n")], rows(), form)
    assert "1500" in seen[0]


def test_listing_of_many_rows_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "csv"):
        write_listing([Column("n")], ((number,) for number in range(2_500)), form)
        out = capsys.readouterr().out
        found = [row["n"] for row in json.loads(out)] if form == "json" else [int(n) for n in out.split()[1:]]
        assert found == list(range(2_500))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


OnTerminal = Callable[[Callable[[], None]], str]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Print on a terminal of 80 columns without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def printed(write: Callable[[], None]) -> str:
        with contextlib.redirect_stdout(_Terminal()) as terminal:
            write()
        return terminal.getvalue()

    return printed


HOSTILE = "a\x1b[31mb\x07\x9b2J\x7f\r\u202ec\u2066\u200f\u061c\u2028d"
ESCAPED = r"a\x1b[31mb\x07\x9b2J\x7f\r\u202ec\u2066\u200f\u061c\u2028d"


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_value_never_controls_the_terminal_in_any_form(form: str, on_terminal: OnTerminal) -> None:
    printed = on_terminal(lambda: write_listing([Column("name")], [(HOSTILE,)], form))
    assert not set(printed) & set(HOSTILE) - set("ab[31mb2Jcd")
    if form == "json":
        assert json.loads(printed) == [{"name": HOSTILE}]
    else:
        assert ESCAPED in printed


def test_value_is_unchanged_where_a_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing([Column("name")], [(HOSTILE,)], "csv")
    assert list(csv.reader(io.StringIO(capsys.readouterr().out, newline=""))) == [["name"], [HOSTILE]]
    write_listing([Column("name")], [(HOSTILE,)], "json")
    assert json.loads(capsys.readouterr().out) == [{"name": HOSTILE}]
    write_data(HOSTILE)
    echo(HOSTILE)
    assert capsys.readouterr().out == f"{HOSTILE}{HOSTILE}\n"


def test_name_in_a_message_or_an_error_never_controls_the_terminal(
    on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_terminal(lambda: echo(f"deleted group {HOSTILE}")) == f"deleted group {ESCAPED}\n"
    with contextlib.redirect_stderr(_Terminal()) as terminal:
        monkeypatch.setenv("NO_COLOR", "1")
        write_error(f"unknown group {HOSTILE}")
        echo(HOSTILE, err=True)
    assert terminal.getvalue() == f"error: unknown group {ESCAPED}\n{ESCAPED}\n"


def test_title_of_a_column_never_controls_the_terminal(on_terminal: OnTerminal) -> None:
    printed = on_terminal(lambda: write_listing([Column(HOSTILE, label=HOSTILE)], [("x",)], "table"))
    assert printed == f"{ESCAPED}\nx\n"


def test_heading_never_controls_the_terminal(on_terminal: OnTerminal) -> None:
    assert on_terminal(lambda: write_heading([f"Topic: {HOSTILE}"])) == f"Topic: {ESCAPED}\n"


# What writes to a standard stream by itself, and so as it is. Here it is escaped, or nobody else has chosen any of it.
RAW = {"echo", "secho", "echo_via_pager", "confirm", "prompt", "print", "print_exception", "write", "writelines"}
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "click"}
ESCAPING = {
    "cli/output.py": {
        "click.echo(line, err=err, color=True)",
        "click.echo(text_for(sys.stdout, text, is_json=is_json), nl=False, color=True)",
    },
    "cli/options.py": {"click.confirm(text_for(sys.stderr, question), err=True)"},
    "spark/jobs.py": {"sys.stderr.write(text_for(sys.stderr, text) + '\\n')"},
    "spark/jars.py": {"sys.stdout.write(f'{text_for(sys.stdout, str(jar))}\\n')"},
    "storage_delta/files/trial.py": {"sys.stdout.write(json.dumps(answer(trial, kind, start, data)) + '\\n')"},
}


def raw_writes(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("click", "sys"):
            yield from [ast.unparse(node) for one in node.names if one.name in {*RAW, "stdout", "stderr"}]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        where, _, name = called.rpartition(".")
        is_raw = name in RAW and (where in STREAMS or name.startswith("print"))
        if is_raw or (called == "csv.writer" and "sys.std" in ast.unparse(node)):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "line",
    [
        "print(name)",
        "click.echo(f'warning: {warning}', err=True)",
        "click.secho(name)",
        "console.print(name)",
        "sys.stderr.write(name)",
        "csv.writer(sys.stdout)",
        "from click import echo",
        "from sys import stderr",
    ],
)
def test_text_that_is_written_as_it_is_is_found(line: str) -> None:
    assert list(raw_writes(line))


def test_nothing_is_written_to_a_terminal_without_being_escaped() -> None:
    root = Path(bus.__file__).parent
    found = {str(path.relative_to(root)): set(raw_writes(path.read_text())) for path in root.rglob("*.py")}
    found.pop("demo/__main__.py")  # its own data, and what it says of it; its failures are escaped
    others = {name: raw - ESCAPING.get(name, set()) for name, raw in found.items() if raw - ESCAPING.get(name, set())}
    assert not others, "write it by `echo` or `write_data` of bus.cli.output, or `tell` of a job"


def test_lines_and_tabs_of_text_stay_on_a_terminal(on_terminal: OnTerminal) -> None:
    assert on_terminal(lambda: write_data("a\tb\n")) == "a\tb\n"


WIDE: Columns[Any] = (
    Column("topic", is_key=True),
    Column("a" * 30),
    Column("b" * 30, kind=Kind.NUMBER),
    Column("c" * 30),
)


def test_a_value_is_taken_of_each_item_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    columns: Columns[str] = (Column("name", str.upper, is_key=True), Column("length", len, Kind.NUMBER, "#LETTERS"))
    for form, printed in {
        "json": '[{"name": "A", "length": 1},\n {"name": "BC", "length": 2}]\n',
        "csv": "name,length\nA,1\nBC,2\n",
        "table": "NAME  #LETTERS\nA            1\nBC           2\n",
    }.items():
        write_listing(columns, ["a", "bc"], form)
        assert capsys.readouterr().out == printed


def test_what_a_table_has_in_its_heading_or_nowhere_is_no_column_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    columns: Columns[Any] = (Column("topic", is_in_heading=True), Column("n"), Column("error", is_optional=True))
    write_listing(columns, [("t", 1, None)], "table", headings=[["Topic: t", "Id: 7"]])
    assert capsys.readouterr().out == "Topic: t\tId: 7\nN\n1\n"
    write_listing(columns, [("t", 1, None), ("t", 2, "lost")], "table")
    assert capsys.readouterr().out == "N  ERROR\n1  -\n2  lost\n"
    write_listing(columns, [("t", 1, None)], "csv", headings=[["Topic: t"]])
    assert capsys.readouterr().out == "topic,n,error\nt,1,\n"


def test_documents_are_what_json_has_in_place_of_the_items(capsys: pytest.CaptureFixture[str]) -> None:
    for form, printed in {"json": '[{"of": "t"}]\n', "csv": "n\n1\n", "table": "N\n1\n"}.items():
        write_listing([Column("n")], [(1,)], form, documents=[{"of": "t"}])
        assert capsys.readouterr().out == printed


def listings() -> Iterator[tuple[str, Columns[Any]]]:
    for module in pkgutil.walk_packages(bus.cli.__path__, f"{bus.cli.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], Column):
                yield f"{module.name}.{name}", value


def test_listings_are_found_in_every_room() -> None:
    rooms = {name.split(".")[2] for name, _ in listings()}
    assert rooms >= {"cluster", "groups", "log", "security", "topics"}


@pytest.mark.parametrize("columns", [pytest.param(columns, id=name) for name, columns in listings()])
def test_every_listing_fits_80_columns(columns: Columns[Any], on_terminal: OnTerminal) -> None:
    cells = {Kind.TEXT: "orders", Kind.NUMBER: 123_456_789, Kind.BYTES: 123_456_789, Kind.TIME_MS: 1795343811300}
    of_rows = [replace(column, value=None) for column in columns]
    printed = on_terminal(lambda: write_listing(of_rows, [[cells[column.kind] for column in columns]], "table"))
    assert [line for line in printed.splitlines() if len(line) > 80] == []


def test_columns_that_do_not_fit_follow_in_tables_that_repeat_the_keys(on_terminal: OnTerminal) -> None:
    printed = on_terminal(lambda: write_listing(WIDE, [("orders", "x", 1, "y"), ("pay", "x", 2, "z")], "table"))
    a, b, c = (letter * 30 for letter in "ABC")
    assert printed == (
        f"TOPIC   {a}  {b}\n"
        f"orders  {'x':<30}  {1:>30}\n"
        f"pay     {'x':<30}  {2:>30}\n"
        "\n"
        f"TOPIC   {c}\n"
        "orders  y\n"
        "pay     z\n"
    )


def test_rows_have_a_line_for_each_cell_if_keys_take_most_of_the_terminal(on_terminal: OnTerminal) -> None:
    lines = on_terminal(lambda: write_listing(WIDE, [("t" * 60, "x", 1, "y")], "table")).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["TOPIC", "t" * 60],
        ["A" * 30, "x"],
        ["B" * 30, "1"],
        ["C" * 30, "y"],
    ]


def test_table_in_a_pipe_is_as_wide_as_its_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    write_listing(WIDE, [("t" * 600, "x", 1, "y" * 600)], "table")
    write_heading(["Topic: orders", "Configs: retention.ms=1"])
    title, row, heading = capsys.readouterr().out.splitlines()
    assert len(row) > 1_200
    assert title.split() == ["TOPIC", "A" * 30, "B" * 30, "C" * 30]
    assert heading == "Topic: orders\tConfigs: retention.ms=1"


def test_heading_that_does_not_fit_has_a_line_for_each_fact(on_terminal: OnTerminal) -> None:
    printed = on_terminal(lambda: write_heading(["Topic: orders", "Configs: " + "x" * 60]))
    assert printed == f"Topic: orders\nConfigs: {'x' * 60}\n"
    assert on_terminal(lambda: write_heading(["Topic: orders", "Configs: "])) == "Topic: orders\tConfigs: \n"
