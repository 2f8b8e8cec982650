from __future__ import annotations

import pytest

from bus.cli.positions import Place, Position, parse_position, parse_time, parse_timestamp_ms


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Place.BEGINNING)),
        ("EARLIEST", Position(Place.BEGINNING)),
        ("end", Position(Place.END)),
        ("latest", Position(Place.END)),
        ("0", Position(Place.OFFSET, 0)),
        ("2013", Position(Place.OFFSET, 2013)),
        ("-10", Position(Place.LAST, 10)),
        ("@1357041600000", Position(Place.TIMESTAMP, 1357041600000)),
        ("2013-01-01", Position(Place.TIMESTAMP, 1356998400000)),
        ("2013-01-01T12:00", Position(Place.TIMESTAMP, 1357041600000)),
        ("2013-01-01T12:00:00.250Z", Position(Place.TIMESTAMP, 1357041600250)),
        ("2013-01-01T14:00+02:00", Position(Place.TIMESTAMP, 1357041600000)),
    ],
)
def test_place_is_read_as_people_write_it(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize("text", ["", "x", "--1", "1.5", "@", "@-1", "@x", "yesterday", "1969-12-31", "max", "٣"])
def test_what_is_no_place_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected beginning, end, an offset"):
        parse_position(text)


def test_time_knows_the_largest_timestamp_but_no_offsets() -> None:
    assert parse_time("max") == Position(Place.MAX_TIMESTAMP)
    assert parse_time("earliest") == Position(Place.BEGINNING)
    assert parse_time("@5") == Position(Place.TIMESTAMP, 5)
    with pytest.raises(ValueError, match="expected earliest, latest, max"):
        parse_time("1500")


def test_year_beyond_the_calendar_is_no_timestamp() -> None:
    assert parse_timestamp_ms("10000-01-01") is None
