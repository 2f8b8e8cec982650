"""The choice of small data files to be rolled into a larger one.

Guards two bounds: few files are live for any sizes of commits, and each row is rewritten a small number of times.
Theory of operation. An append writes a file of level 0, and rolling files gives a file of the next level, so a file's
level is the number of times that its rows were rewritten. Files of one level that follow each other are a run; it is
rolled when it has many files, when no more files fit into one, or when the oldest is old. A file of half a
`segment.bytes` is full: it is never rolled again, and small files before it can never grow; these are rolled together,
whatever their levels. No roll crosses the end of what key compaction has processed. Like a segment of Kafka's, a rolled
file spans about `segment.ms` at most, so that retention can delete it in time; it may span more only if there would be
too many files otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from bus.partition_log.compaction import CompactionRules
from bus.partition_log.retention import RetentionRules
from bus.ports import LogFile
from bus.settings.keys import LONG_MAX

# The length of a run that is rolled. A row is then rewritten once each time the log grows by this factor.
RUN_FILES_MAX = 400
# With this many small files, of any level, the longest run is rolled.
SMALL_FILES_MAX = 800


@dataclass(frozen=True, slots=True)
class RollingRules:
    segment_bytes: int  # segment.bytes: no rolled file is planned to be larger
    segment_ms: int  # segment.ms

    @property
    def full_bytes(self) -> int:
        """The size from which on a file is full."""
        return (self.segment_bytes + 1) // 2


@dataclass(frozen=True, slots=True)
class _Fragment:
    """Small files that follow each other. `is_closed`: a file that stays as it is follows, so they cannot grow."""

    files: Sequence[LogFile]
    is_closed: bool


Run = Sequence[LogFile]


def decide_roll(
    files: Sequence[LogFile],
    rules: RollingRules,
    *,
    compacted_to: int,
    now_ms: int,
    left_alone: Collection[str] = (),
) -> Run:
    """The files to be rolled now, at least two; empty: none. `files` are all live ones; those whose paths are in
    `left_alone` cannot be read, and stay. The newest come first: they are many, and a roll of them is quick."""
    fragments = _split(files, rules, compacted_to, left_alone)
    for fragment in reversed(fragments):
        run = _due_run(fragment, rules, now_ms)
        if run:
            return run
    if sum(len(fragment.files) for fragment in fragments) < SMALL_FILES_MAX:
        return ()
    # Their number then matters more than the time that they span.
    at_any_age = replace(rules, segment_ms=LONG_MAX)
    runs = (_fitting(run, at_any_age) for fragment in fragments for run in _runs(fragment))
    longest = max(runs, key=len)
    return longest if len(longest) > 1 else ()


def plan_full_roll(
    files: Sequence[LogFile],
    rules: RollingRules,
    *,
    compacted_to: int,
    log_start: int = 0,
    left_alone: Collection[str] = (),
) -> list[Run]:
    """Plan to roll all files that no roll has made yet and that may be rolled, due or not, oldest first. A first file
    with deleted records below `log_start` is rolled too, alone if necessary, so that they leave it.

    Files made by rolls wait until they are due. Otherwise a file that is rolled manually again and again, with newer
    records, would never come of age: its time is that of its newest record.
    """
    fragments = _split(files, rules, compacted_to, left_alone)
    runs = (run for fragment in fragments for run in _runs(fragment) if fragment.is_closed or run[0].level == 0)
    plan = [fitting for run in runs for fitting in _complete(run, rules) if len(fitting) > 1]
    first = files[0] if files else None
    if first is None or first.base_offset >= log_start or first.path in left_alone:
        return plan
    is_planned = bool(plan) and plan[0][0] is first
    return plan if is_planned else [[first], *plan]


def _split(
    files: Sequence[LogFile], rules: RollingRules, compacted_to: int, left_alone: Collection[str]
) -> list[_Fragment]:
    fragments: list[_Fragment] = []
    small: list[LogFile] = []
    full_bytes = rules.full_bytes
    for file in files:
        if file.size_bytes >= full_bytes or file.path in left_alone:
            if small:
                fragments.append(_Fragment(small, is_closed=True))
                small = []
            continue
        if small and small[-1].base_offset < compacted_to <= file.base_offset:
            fragments.append(_Fragment(small, is_closed=False))
            small = []
        small.append(file)
    if small:
        fragments.append(_Fragment(small, is_closed=False))
    return fragments


def _runs(fragment: _Fragment) -> list[Run]:
    """A closed fragment is one run, with any levels in it."""
    if fragment.is_closed:
        return [fragment.files]
    return [list(run) for _, run in groupby(fragment.files, key=lambda file: file.level)]


def _due_run(fragment: _Fragment, rules: RollingRules, now_ms: int) -> Run:
    for run in reversed(_runs(fragment)):
        for due in _complete(run, rules):
            if len(due) > 1 and (fragment.is_closed or _is_due(due, run, rules, now_ms)):
                return due
    return ()


def _complete(run: Run, rules: RollingRules) -> Iterator[Run]:
    """Yield runs that each fit into one file. A new run begins at each file that does not fit behind the one before
    it."""
    start = 0
    while start < len(run):
        fitting = _fitting(run, rules, start)
        yield fitting
        start += len(fitting)


def _is_due(fitting: Run, run: Run, rules: RollingRules, now_ms: int) -> bool:
    is_last = fitting[-1] is run[-1]
    return not is_last or len(fitting) >= RUN_FILES_MAX or now_ms - fitting[0].appended_ms >= rules.segment_ms


def _fitting(files: Run, rules: RollingRules, start: int = 0) -> Run:
    """Return the longest run from `start` on, at least one file, that fits into one file."""
    size_bytes = files[start].size_bytes
    end_ms = files[start].appended_ms + rules.segment_ms
    end = start + 1
    while end < len(files):
        size_bytes += files[end].size_bytes
        if size_bytes > rules.segment_bytes or files[end].appended_ms >= end_ms:
            break
        end += 1
    return files[start:end]


# The bus's own topics get a version for every few records, which say more of the past than anybody asks for.
INTERNAL_VERSION_COUNT_MAX = 250


@dataclass(frozen=True, slots=True)
class VersionRules:
    """How long the past of a table stays."""

    retention_ms: int  # delta.log.retention.ms
    count_max: int  # delta.log.versions.max
    file_delete_delay_ms: int  # file.delete.delay.ms


@dataclass(frozen=True, slots=True)
class MaintenanceRules:
    """The maintenance of a topic's partitions according to its configs. A kind of maintenance that is None is off."""

    versions: VersionRules
    tombstone_retention_ms: int  # delete.retention.ms
    compression: str  # the compression of rolled files
    rolling: RollingRules | None = None
    retention: RetentionRules | None = None
    compaction: CompactionRules | None = None
    is_internal: bool = False  # a topic of the bus's own: compacted as a whole, by a rule of its own
    may_delete_records: bool = True  # cleanup.policy is not compact alone

    @property
    def is_compacted(self) -> bool:
        return self.is_internal or self.compaction is not None
