"""A whole day of commits for the rules of rolling alone, without a disk: what becomes of files, and how often bytes are
rewritten.

What a run of some hundred thousand commits cannot show: the files of the third level, and the bound on all levels
together. Takes the sizes of files from whoever measured them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.partition_log.log_life import RollingRules, decide_roll
from bus.settings.topic import TopicConfig

_COMMIT_MS = 10
_LOOK_COMMITS = 20


@dataclass(frozen=True, slots=True)
class _File:
    """A `bus.ports.LogFile`."""

    size_bytes: int
    base_offset: int
    next_offset: int
    appended_ms: int
    level: int

    @property
    def path(self) -> str:
        return f"{self.base_offset}-{self.level}"

    @property
    def record_count(self) -> int:
        return self.next_offset - self.base_offset

    @property
    def timestamp_max_ms(self) -> int:
        return self.appended_ms


@dataclass(frozen=True, slots=True)
class RolledDay:
    live_files_max: int
    live_files: int
    amplification: float  # (appended + rewritten) / appended bytes


def roll_a_day(commits: int, *, commit_bytes: int, rolled_bytes_per_record: float) -> RolledDay:
    """A record a commit. A rolled file is smaller than what it is made of, as far as that was mostly metadata."""
    config = TopicConfig()
    rules = RollingRules(config.segment_bytes, config.segment_ms)
    files: list[_File] = []
    rewritten_bytes = live_files_max = 0
    for number in range(commits):
        files.append(_File(commit_bytes, number, number + 1, number * _COMMIT_MS, 0))
        if number % _LOOK_COMMITS:
            continue
        live_files_max = max(live_files_max, len(files))
        while run := decide_roll(files, rules, compacted_to=0, now_ms=number * _COMMIT_MS):
            first = next(at for at, file in enumerate(files) if file is run[0])
            records = run[-1].next_offset - run[0].base_offset
            level = max(file.level for file in run) + 1
            size_bytes = round(records * rolled_bytes_per_record)
            rolled = _File(size_bytes, run[0].base_offset, run[-1].next_offset, run[-1].appended_ms, level)
            files[first : first + len(run)] = [rolled]
            rewritten_bytes += size_bytes
    return RolledDay(live_files_max, len(files), 1 + rewritten_bytes / (commits * commit_bytes))
