"""Times of the calendar as milliseconds since 1970, exactly: a float has not enough digits for every millisecond."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def epoch_ms(moment: datetime) -> int:
    """Rounded down. A time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MILLISECOND
