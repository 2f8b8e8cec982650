from __future__ import annotations

import time

import pytest

from bus.cli.partition_arguments import Place, Position, parse_position, parse_time, parse_timestamp_ms


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
        ("2017-06-01T00:00:00.001Z", Position(Place.TIMESTAMP, 1496275200001)),
        ("2040-01-01T00:00:00.029Z", Position(Place.TIMESTAMP, 2208988800029)),
    ],
)
def test_place_is_read_as_people_write_it(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    ["", "x", "--1", "1.5", "@", "@-1", "@-", "@-1x", "@-1m1h", "@-h", "@x", "yesterday", "1969-12-31", "max", "٣"],
)
def test_what_is_no_place_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected beginning, end, an offset"):
        parse_position(text)


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("@-90s", 90_000), ("@-1h", 3_600_000), ("@-1d12h", 129_600_000), ("@-2w", 1_209_600_000), ("@-999999999w", None)],
)
def test_a_time_may_be_so_long_ago(text: str, ago_ms: int | None) -> None:
    before = time.time_ns() // 1_000_000
    found = parse_timestamp_ms(text)
    after = time.time_ns() // 1_000_000
    assert found is not None
    assert found == 0 if ago_ms is None else before - ago_ms <= found <= after - ago_ms


def test_every_millisecond_is_read_as_it_is_written() -> None:
    for ms in range(1_500_000_000_000, 1_500_000_001_000):
        assert parse_timestamp_ms(f"2017-07-14T02:40:00.{ms % 1000:03}Z") == ms


def test_time_knows_the_largest_timestamp_but_no_offsets() -> None:
    assert parse_time("max") == Position(Place.MAX_TIMESTAMP)
    assert parse_time("earliest") == Position(Place.BEGINNING)
    assert parse_time("@5") == Position(Place.TIMESTAMP, 5)
    with pytest.raises(ValueError, match="expected earliest, latest, max"):
        parse_time("1500")


def test_year_beyond_the_calendar_is_no_timestamp() -> None:
    assert parse_timestamp_ms("10000-01-01") is None
