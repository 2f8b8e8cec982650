from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bus.cli.output import Column, cell_text, human_bytes, human_time, write_listing

COLUMNS = (Column("topic"), Column("latest_offset", is_number=True), Column("size", is_bytes=True))
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


def test_wide_characters_keep_the_columns_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    write_listing((Column("name"), Column("n", is_number=True)), [("日本", 1), ("abcd", 2)], "table")
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
