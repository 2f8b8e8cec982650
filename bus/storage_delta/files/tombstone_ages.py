"""Since when the offsets of a file have been in the log: by it key compaction knows which tombstones may go.

Guards one promise: a tombstone is never taken for older than it is, however often it was rewritten. A file that a
commit appended is as old as that commit. One that key compaction wrote carries pairs `next_offset:since_ms` in its tag
`bus.ages`, in offset order: offsets below `next_offset`, and not below the pair before, are in the log since then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

# (next_offset, since_ms), both of them growing.
Ages = Sequence[tuple[int, int]]

# The number of steps into which ages below the retention time are divided: a tombstone is deleted up to one sixteenth
# of the retention time late.
_STEPS = 16
# The number of steps for each doubling of an age, where ages are compared by their ratio; below the minimum the
# difference hardly matters.
_STEPS_PER_DOUBLING = 8
_STEP_MIN_MS = 60_000
_PAIRS = re.compile(r"(\d+:\d+)( \d+:\d+)*")


class _FileOfAges(Protocol):
    @property
    def next_offset(self) -> int: ...
    @property
    def committed_ms(self) -> int: ...
    @property
    def ages(self) -> str: ...


def ages_of(files: Iterable[_FileOfAges]) -> list[tuple[int, int]]:
    """Return the ages of files that follow each other. A file that claims to be older than its predecessor counts as
    old as the predecessor."""
    ages: list[tuple[int, int]] = []
    for file in files:
        for next_offset, since_ms in decode_ages(file.ages) or [(file.next_offset, file.committed_ms)]:
            ages.append((next_offset, max(since_ms, ages[-1][1]) if ages else since_ms))
    return ages


def end_of_old(ages: Ages, *, until_ms: int) -> int:
    """Offsets below this were in the log by then."""
    return max((next_offset for next_offset, since_ms in ages if since_ms <= until_ms), default=0)


def thin(ages: Ages, *, now_ms: int, retention_ms: int) -> list[tuple[int, int]]:
    """Reduce `ages` to a few more than `_STEPS` pairs that say nearly the same, however many there were. Merged pairs
    take the youngest of their ages, so repeated calls make nothing look older."""
    step_ms = max(1, retention_ms // _STEPS)
    thinned: dict[int, tuple[int, int]] = {}
    for next_offset, since_ms in ages:
        is_old = since_ms <= now_ms - retention_ms
        thinned[-1 if is_old else since_ms // step_ms] = (next_offset, since_ms)
    return list(thinned.values())


def thin_by_ratio(ages: Ages) -> list[tuple[int, int]]:
    """Reduce `ages` where the retention time is unknown: ages that differ by less than a tenth are merged. Returns
    about a hundred pairs, whatever the times."""
    newest_ms = max((since_ms for _, since_ms in ages), default=0)
    thinned: dict[int, tuple[int, int]] = {}
    for next_offset, since_ms in ages:
        step = round(_STEPS_PER_DOUBLING * math.log2(1 + (newest_ms - since_ms) / _STEP_MIN_MS))
        thinned[step] = (next_offset, since_ms)
    return list(thinned.values())


def encode_ages(ages: Ages, *, base_offset: int, next_offset: int) -> str:
    """The pairs of a file with these offsets."""
    pairs = {min(end, next_offset): since_ms for end, since_ms in reversed(ages) if end > base_offset}
    return " ".join(f"{end}:{since_ms}" for end, since_ms in reversed(pairs.items()))


def check_ages(text: str) -> str:
    """`text`, if it can be the ages of a file; empty if it has none. Raises `ValueError`."""
    if text and not _PAIRS.fullmatch(text):
        raise ValueError(f"expected pairs of an offset and a time, found {text!r}")
    return text


def decode_ages(text: str) -> list[tuple[int, int]]:
    pairs = (pair.split(":") for pair in text.split())
    return [(int(next_offset), int(since_ms)) for next_offset, since_ms in pairs]
