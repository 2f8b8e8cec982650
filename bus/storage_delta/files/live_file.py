"""A data file as the log knows it: its name, and what the tags of its `add` action say of its rows.

Guards one promise: opening a table parses no statistics and reads no data file. Each file of the bus carries the tag
`bus.file`: the six numbers of `LiveFile` from `base_offset` to `leader_epoch`, then how many spans of producers it has
(producer_spans.py), and these. Files from before there were producers have the six numbers alone. A file whose rows
were rewritten says how often in `bus.level` and has the tag `bus.ages`, since when its offsets have been in the log
(`ages_of`). `bus.crc32` has the checksums of its bytes (proved_parquet.py). Does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.storage_delta.files.producer_spans import NO_SPANS, check_spans, count_spans, spans_of_statistics

FILE_TAG = "bus.file"
AGES_TAG = "bus.ages"
LEVEL_TAG = "bus.level"
SUMS_TAG = "bus.crc32"
_OLD_TAG_NUMBERS = 6
_TAG_NUMBERS = 7
_DATA_FILE_NAME = re.compile(r"(\d{20})-.+\.parquet")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of the current version. Invariant: 0 < record_count <= next_offset - base_offset."""

    path: str  # relative to the table, as it is called in the store
    size_bytes: int
    base_offset: int
    next_offset: int  # one past the last offset that the file stands for
    record_count: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    leader_epoch: int  # the largest in the file
    is_ordered: bool = True  # rows are in offset order; known of our files, not of those that others rewrote
    is_ours: bool = True  # the bus wrote it, no other engine
    # encoded by producer_spans.py; the file holds no record of a producer outside these spans
    producers: str = NO_SPANS
    committed_ms: int = 0  # when the version that added it was made
    ages: str = ""  # see `encode_ages`, if the rows were rewritten
    level: int = 0  # the number of times that the rows were rewritten
    sums: str = ""  # encoded by proved_parquet.py; empty: written by an earlier bus or by another engine
    version: int = field(default=-1, compare=False)  # the version that added it, while the log still has that version

    @property
    def is_dense(self) -> bool:
        return self.record_count == self.next_offset - self.base_offset

    @property
    def appended_ms(self) -> int:
        """When the newest of its rows was committed."""
        return int(self.ages.rpartition(":")[2]) if self.ages else self.committed_ms


def data_file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}-{suffix}.parquet"


def is_data_file(name: str) -> bool:
    """True if `name` has the form of the bus's data files. Other engines remove their own files."""
    return _DATA_FILE_NAME.fullmatch(name) is not None


def base_offset_of(name: str) -> int:
    """The first offset of a data file of the bus, by its name."""
    return int(name.split("-", 1)[0])


def encode_tags(file: LiveFile) -> str:
    """JSON. No value in it needs escaping."""
    ages = f',"{AGES_TAG}":"{file.ages}"' if file.ages else ""
    level = f',"{LEVEL_TAG}":"{file.level}"' if file.level else ""
    sums = f',"{SUMS_TAG}":"{file.sums}"' if file.sums else ""
    return (
        f'{{"{FILE_TAG}":"{file.base_offset} {file.next_offset} {file.record_count} {file.timestamp_min_ms} '
        f"{file.timestamp_max_ms} {file.leader_epoch} {count_spans(file.producers)}"
        f'{" " if file.producers else ""}{file.producers}"{ages}{level}{sums}}}'
    )


def decode_tags(
    path: str,
    size_bytes: int,
    tag: str,
    *,
    stats: str | None,
    committed_ms: int,
    ages: str | None,
    level: str | None,
    sums: str | None,
    version: int,
) -> LiveFile:
    """`tag` is the file's `bus.file`; `stats` counts where that tells nothing of producers (see `is_telling`). Raises
    `ValueError`."""
    numbers, spans = tag.split(" ", _TAG_NUMBERS), NO_SPANS
    base, following, count, time_min, time_max, epoch = map(int, numbers[:_OLD_TAG_NUMBERS])
    check_int64(max(following, time_max, epoch))
    if len(numbers) == _OLD_TAG_NUMBERS:
        spans = spans_of_statistics(stats)
    elif numbers[_OLD_TAG_NUMBERS] != "0":
        spans = check_spans(numbers[_TAG_NUMBERS], int(numbers[_OLD_TAG_NUMBERS]))
    return LiveFile(
        path=path,
        size_bytes=size_bytes,
        base_offset=base,
        next_offset=following,
        record_count=count,
        timestamp_min_ms=time_min,
        timestamp_max_ms=time_max,
        leader_epoch=epoch,
        producers=spans,
        committed_ms=committed_ms,
        ages=check_ages(ages or ""),
        level=int(level or 0),
        sums=sums or "",
        version=version,
    )


def is_telling(tag: str | None) -> bool:
    """True if a file's tag names its producers, so that its statistics need not be parsed."""
    return tag is not None and tag.count(" ") >= _OLD_TAG_NUMBERS


def check_int64(number: int) -> int:
    """Delta has no larger numbers. Raises `ValueError`."""
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"expected a number of 64 bits, found one of {number.bit_length()}")
    return number


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
    """Return since when the offsets of files that follow each other have been in the log: by it key compaction knows
    which tombstones may go. A file that claims to be older than its predecessor counts as old as the predecessor.

    Guards one promise: a tombstone is never taken for older than it is, however often it was rewritten. A file that a
    commit appended is as old as that commit. One that key compaction wrote carries pairs `next_offset:since_ms` in its
    tag `bus.ages`, in offset order: offsets below `next_offset`, and not below the pair before, are in the log since
    then."""
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
