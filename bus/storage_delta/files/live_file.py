"""A data file as the log knows it: its name, and what the tags of its `add` action say of its rows.

Guards one promise: opening a table parses no statistics and reads no data file. Each file of the bus carries the tag
`bus.file`: the six numbers of `LiveFile` from `base_offset` to `leader_epoch`, then how many spans of producers it has
(producer_spans.py), and these. Files from before there were producers have the six numbers alone. A file whose rows
were rewritten says how often in `bus.level` and has the tag `bus.ages` (tombstone_ages.py). `bus.crc32` has the
checksums of its bytes (proved_parquet.py). Does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bus.storage_delta.files.producer_spans import NO_SPANS, check_spans, count_spans, spans_of_statistics
from bus.storage_delta.files.tombstone_ages import check_ages

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
    ages: str = ""  # encoded by tombstone_ages.py, if the rows were rewritten
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
