"""A log of nothing but files, rolled by the rules as a partition would: for what the rules promise of any stream."""

from __future__ import annotations

from collections.abc import Sequence

from bus.partition_log.log_life import RollingRules, decide_roll
from bus.ports import LogFile
from tests.support.fake_table import FakeFile


def data_file(
    base_offset: int,
    next_offset: int | None = None,
    *,
    size_bytes: int = 1,
    appended_ms: int = 0,
    timestamp_max_ms: int | None = None,
    level: int = 0,
    records: int | None = None,
) -> FakeFile:
    end = base_offset + 1 if next_offset is None else next_offset
    return FakeFile(
        path=f"{base_offset}-{level}",
        size_bytes=size_bytes,
        base_offset=base_offset,
        next_offset=end,
        record_count=end - base_offset if records is None else records,
        timestamp_max_ms=appended_ms if timestamp_max_ms is None else timestamp_max_ms,
        appended_ms=appended_ms,
        level=level,
    )


class RolledLog:
    """`look` rolls what is due until nothing is, and checks each run."""

    def __init__(self, rules: RollingRules, *, compacted_to: int = 0) -> None:
        self.rules = rules
        self.compacted_to = compacted_to
        self.files: list[FakeFile] = []
        self.now_ms = 0
        self.appended_bytes = self.rewritten_bytes = self.live_max = 0

    @property
    def full_count(self) -> int:
        full_bytes = self.rules.full_bytes
        return sum([file.size_bytes >= full_bytes for file in self.files])

    def append(self, size_bytes: int, *, after_ms: int = 10) -> None:
        self.now_ms += after_ms
        end = self.files[-1].next_offset if self.files else 0
        self.files.append(data_file(end, size_bytes=size_bytes, appended_ms=self.now_ms))
        self.appended_bytes += size_bytes

    def look(self) -> None:
        self.live_max = max(self.live_max, len(self.files))
        while run := decide_roll(self.files, self.rules, compacted_to=self.compacted_to, now_ms=self.now_ms):
            self._roll(run)

    def _roll(self, run: Sequence[LogFile]) -> None:
        first = next(at for at, file in enumerate(self.files) if file is run[0])
        chosen = self.files[first : first + len(run)]
        assert list(run) == chosen, "a run is of files that follow each other"
        size_bytes = sum(file.size_bytes for file in chosen)
        assert len(chosen) > 1
        assert size_bytes <= self.rules.segment_bytes
        assert all(file.size_bytes < self.rules.full_bytes for file in chosen)
        assert not chosen[0].base_offset < self.compacted_to < chosen[-1].next_offset
        self.files[first : first + len(run)] = [
            data_file(
                chosen[0].base_offset,
                chosen[-1].next_offset,
                size_bytes=size_bytes,
                appended_ms=chosen[-1].appended_ms,
                level=max(file.level for file in chosen) + 1,
            )
        ]
        self.rewritten_bytes += size_bytes
