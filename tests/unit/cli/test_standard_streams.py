"""Streams that are closed, full or slow when the command starts, as processes: a test runner has streams of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BUS = f"{sys.executable} -m bus"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=100, check=False, env=environment)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--version >&-", 1, "error: standard output is closed\n"),
        ("completion bash >&-", 1, "error: standard output is closed\n"),
        ("--help > /dev/full", 1, "error: standard output: no space left on device\n"),
        ("sql - <&-", 1, "error: standard input is closed\n"),
        ("sql - --root /no/such/root < /dev/null 2>&-", 2, ""),
        ("no-such-command <&- >&- 2>&-", 2, ""),
    ],
)
def test_a_stream_that_is_closed_or_full_is_told_by_name(line: str, status: int, said: str) -> None:
    found = shell(f"{BUS} {line}")
    assert (found.returncode, found.stdout, found.stderr) == (status, "", said)


def test_what_the_encoding_has_no_characters_for_is_escaped() -> None:
    code = r"import sys; from bus.cli.output import prepare_streams as p; p(); print('\xe9\udcff')"
    found = shell(f'{sys.executable} -c "{code}"', PYTHONIOENCODING="ascii")
    assert (found.stdout, found.stderr) == ("\\xe9\\udcff\n", "")


def test_no_arguments_print_the_help() -> None:
    for group in ("", "topics"):
        found = shell(f"{BUS} {group}")
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout == shell(f"{BUS} {group} --help").stdout


@pytest.mark.parametrize("off", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_argument_that_is_no_ascii_is_the_same_in_a_posix_locale(off: dict[str, str]) -> None:
    found = shell(f"{BUS} completion grün", LC_ALL="POSIX", PYTHONIOENCODING="utf-8", **off)
    assert "'grün'" in found.stderr


def test_argument_that_is_no_text_is_refused_by_name() -> None:
    found = shell(f"{BUS} topics list --address \"$(printf 'h\\377')\"")
    assert (found.returncode, found.stdout) == (2, "")
    assert "error: expected arguments in UTF-8, found 'h\\udcff'" in found.stderr
