from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from bus.cli.partition_arguments import parse_timestamp_ms
from bus.model import TIMESTAMP_MS_MAX
from bus.records.epoch import epoch_ms


@given(st.integers(0, TIMESTAMP_MS_MAX), st.integers(0, 999))
def test_every_millisecond_is_itself_and_what_lies_behind_it_is_cut(ms: int, us: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms, microseconds=us)
    assert epoch_ms(moment) == ms
    assert epoch_ms(moment.replace(tzinfo=None)) == ms
    assert parse_timestamp_ms(moment.isoformat()) == ms
