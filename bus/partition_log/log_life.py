"""The life of a partition's log: when it is compacted by key, what retention and DeleteRecords delete, which small data
files are rolled into a larger one, and how long the past of the table stays.

Decides on numbers alone; `CompactionRules`, `RetentionRules` and `RollingRules` say which promises and bounds hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from bus.errors import ErrorCode, Refused
from bus.ports import LogFile, LogState
from bus.settings.keys import LONG_MAX

# Below this there is little to gain, however small the table.
DIRTY_FILES_MIN = 20
# From this size on compaction pays, however few the files.
DIRTY_BYTES_MIN = 1024 * 1024
# From this number on readers suffer, however small the files: those of the bus's own topics open all of them.
DIRTY_FILES_MAX = 200


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules for a topic of users, which bound the work: compaction reads and rewrites all that is live, so it waits
    until there is enough to gain. Of every byte that was appended it rewrites at most two where the backlog has
    outgrown what was compacted before (a dirty ratio of a half)."""

    dirty_ratio_min: float  # min.cleanable.dirty.ratio
    lag_min_ms: int  # min.compaction.lag.ms
    lag_max_ms: int  # max.compaction.lag.ms


def decide_key_compaction(
    files: Sequence[LogFile], *, unseen_count: int, rules: CompactionRules, now_ms: int, is_requested: bool = False
) -> int | None:
    """Return the offset up to which to compact now; None: not now. The last `unseen_count` of the live `files` were not
    compacted yet. The newest file, and files younger than the smallest lag, are not touched. `is_requested`: an
    operator wants it, however little there is to gain."""
    seen = files[: len(files) - unseen_count]
    dirty: list[LogFile] = []
    for file in files[len(seen) : -1]:
        if now_ms - file.appended_ms < rules.lag_min_ms:
            break
        dirty.append(file)
    if not dirty:
        return None
    dirty_bytes = sum(file.size_bytes for file in dirty)
    all_bytes = dirty_bytes + sum(file.size_bytes for file in seen)
    is_worth_it = len(dirty) >= DIRTY_FILES_MIN or dirty_bytes >= DIRTY_BYTES_MIN
    is_dirty = is_worth_it and dirty_bytes > rules.dirty_ratio_min * all_bytes
    is_late = now_ms - dirty[0].appended_ms > rules.lag_max_ms
    return dirty[-1].next_offset if is_requested or is_dirty or is_late else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The files that compaction has not processed yet, and the size of those that it has."""

    file_count: int
    size_bytes: int
    compacted_bytes: int


def decide_internal_compaction(backlog: Backlog) -> bool:
    """True if one of the bus's own topics is to be compacted now, as a whole. Many files alone make it due: then a
    commit costs a `DIRTY_FILES_MAX`-th of the compacted bytes, beside its own."""
    if backlog.file_count >= DIRTY_FILES_MAX:
        return True
    return backlog.file_count >= DIRTY_FILES_MIN and backlog.size_bytes > backlog.compacted_bytes


NO_BOUND = -1
TO_HIGH_WATERMARK = -1


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """-1: no bound. Two promises: only records at the start of the log are deleted, and none before it is due. A file's
    time is its largest timestamp, but never later than its commit: a record from the future keeps nothing forever, and
    since files are deleted as a whole, a record from the past takes nothing with it."""

    retention_ms: int  # retention.ms
    retention_bytes: int  # retention.bytes


@dataclass(frozen=True, slots=True)
class Retained:
    """The log is to start at `log_start`: `file_count` files end at or below it."""

    log_start: int
    file_count: int
    reason: str


def decide_retention(files: Sequence[LogFile], rules: RetentionRules, *, now_ms: int) -> Retained | None:
    """Decide which of `files`, all live ones, to delete: whole files from the first on, as long as each is due by
    itself, by age, or because the rest without it is still as large as `retention.bytes`. All of them may go. None:
    nothing is due."""
    excess_bytes = sum(file.size_bytes for file in files) - rules.retention_bytes
    count = 0
    is_by_size = False
    for file in files:
        is_old = rules.retention_ms != NO_BOUND and now_ms - time_ms_of(file) > rules.retention_ms
        is_excess = rules.retention_bytes != NO_BOUND and excess_bytes >= file.size_bytes
        if not is_old and not is_excess:
            break
        excess_bytes -= file.size_bytes
        is_by_size = is_by_size or not is_old
        count += 1
    if not count:
        return None
    reason = f"retention.bytes={rules.retention_bytes}" if is_by_size else f"retention.ms={rules.retention_ms}"
    return Retained(files[count - 1].next_offset, count, reason)


def time_ms_of(file: LogFile) -> int:
    """Return when its newest record was written, as far as that can be believed. A file without records has no
    timestamp."""
    return min(file.timestamp_max_ms, file.appended_ms) if file.record_count else file.appended_ms


def decide_delete_records(log: LogState, offset: int, *, may_delete: bool) -> int | Refused:
    """Return the new start of the log, which may be the present one. `offset` -1: at the high watermark."""
    if not may_delete:
        return Refused(
            ErrorCode.POLICY_VIOLATION, "expected a topic with cleanup.policy=delete or none, found compact alone"
        )
    wanted = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        return Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"expected an offset from 0 to the high watermark, {log.high_watermark}, or -1 for it, found {offset}",
        )
    return max(wanted, log.log_start)


@dataclass(frozen=True, slots=True)
class RetentionTime:
    """`now_ms` is what retention takes the wall clock to say at the monotonic time `read_at_ms`. It runs at most twice
    as fast as time passes, so a clock that jumps ahead by a day deletes nothing at once, and the operator has half a
    day to correct it."""

    now_ms: int
    read_at_ms: int


def read_time(before: RetentionTime | None, *, wall_ms: int, monotonic_ms: int) -> RetentionTime:
    """Return the wall clock's time, but ahead of `before` by at most twice the time that has passed since. A clock that
    goes back is followed at once: then records only stay longer. `before` None: there is no earlier time, and the clock
    is believed."""
    if before is None:
        return RetentionTime(wall_ms, monotonic_ms)
    ahead_max_ms = 2 * max(0, monotonic_ms - before.read_at_ms)
    return RetentionTime(min(wall_ms, before.now_ms + ahead_max_ms), monotonic_ms)


# The length of a run that is rolled. A row is then rewritten once each time the log grows by this factor.
RUN_FILES_MAX = 400
# With this many small files, of any level, the longest run is rolled.
SMALL_FILES_MAX = 800


@dataclass(frozen=True, slots=True)
class RollingRules:
    """Two bounds hold: few files are live for any sizes of commits, and each row is rewritten a small number of times.

    Theory of operation. An append writes a file of level 0, and rolling files gives a file of the next level, so a
    file's level is the number of times that its rows were rewritten. Files of one level that follow each other are a
    run; it is rolled when it has many files, when no more files fit into one, or when the oldest is old. A file of half
    a `segment.bytes` is full: it is never rolled again, and small files before it can never grow; these are rolled
    together, whatever their levels. No roll crosses the end of what key compaction has processed. Like a segment of
    Kafka's, a rolled file spans about `segment.ms` at most, so that retention can delete it in time; it may span more
    only if there would be too many files otherwise."""

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
    is_managed: bool = True  # no other Delta engine may write to the tables: not delta.foreign.writers.enable

    @property
    def is_compacted(self) -> bool:
        return self.is_internal or self.compaction is not None
