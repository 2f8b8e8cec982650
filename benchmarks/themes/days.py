"""A day's write at 100 commits a second on one partition: is the last hour what the first was?

The commits that are really made are a part of the day, which `simulated_day.py` explains; what only shows over all of
it, the files of the third level, comes from the rules alone (`rolled_day.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.bench import MIB, Bench
from benchmarks.figure import Figure
from benchmarks.rolled_day import RolledDay, roll_a_day
from benchmarks.send_process import run_program

_DAY_COMMITS = 8_640_000
_FLAT_TARGET = 1.2
# A commit of one record is mostly metadata, of which rolling leaves little; one of a hundred records is mostly records.
_LARGE_COMMIT_BYTES = 10_000
_LARGE_COMMITS = 2_000_000
_LIVE_FILES_TARGET = 1_000
_AMPLIFICATION_TARGET = 3.0
_TIMEOUT_S = 7_200.0

Part = dict[str, Any]  # as benchmarks.simulated_day prints it


def measure_day(bench: Bench) -> list[Figure]:
    commits = bench.sizes.day_commits
    bench.report(f"{commits:,} commits of a day's {_DAY_COMMITS:,}")
    day = run_program("simulated_day", timeout_s=_TIMEOUT_S, root=bench.folder / "day", commits=commits)
    parts: list[Part] = day["parts"]
    bench.report(f"  {commits / day['seconds']:.0f} commits/s; p50 {_text(parts, 'p50_ms')} ms")
    bench.report(f"  live files {_text(parts, 'live_files_max')}; of the log {_text(parts, 'log_files')}")
    commit_bytes = day["appended_bytes"] // commits
    ruled = bench.sizes.day_commits_ruled
    alone = roll_a_day(ruled, commit_bytes=commit_bytes, rolled_bytes_per_record=day["rolled_bytes_per_record"])
    large = roll_a_day(
        min(ruled, _LARGE_COMMITS), commit_bytes=_LARGE_COMMIT_BYTES, rolled_bytes_per_record=_LARGE_COMMIT_BYTES
    )
    note = f"{commits:,} of a day's {_DAY_COMMITS:,} commits; what is kept by age or number is kept for a part of them"
    return [
        Figure("day-p50", "a day at 100 commits/s, p50 of a commit", "ms", _of(parts, "p50_ms"), note=note),
        Figure("day-p99", "... p99 of a commit, the middle hour", "ms", _of(parts, "p99_ms")),
        _flat("day-flat-p50", "p50 of the last hour over the first", parts, "p50_ms"),
        _flat("day-flat-p99", "p99 of the last eight hours over the first", parts, "p99_ms", hours=8),
        _flat("day-flat-open", "opening, the last eight hours over the first", parts, "open_s", hours=8),
        Figure("day-open", "... opening after the last hour", "s", [parts[-1]["open_s"]]),
        Figure(
            "day-live", "... live files, the most", "files", [max(_of(parts, "live_files_max"))], _LIVE_FILES_TARGET
        ),
        _flat(
            "day-flat-log", "files of the log, the last quarter over the one before", parts[12:], "log_files", hours=6
        ),
        Figure("day-log", "... files of the log at the end", "files", [parts[-1]["log_files"]]),
        Figure("day-memory", "... memory at the end", "MiB", [parts[-1]["resident_bytes"] / MIB]),
        _flat("day-flat-memory", "memory, the last quarter over the one before", parts[12:], "resident_bytes", hours=6),
        Figure("day-amplification", "... write amplification", "x", [_amplification(day)], _AMPLIFICATION_TARGET),
        Figure(
            "day-checkpoints",
            "... checkpoints, bytes written for each appended",
            "x",
            [day["replaced_bytes"] / day["appended_bytes"]],
        ),
        *_ruled_figures(ruled, alone, large),
    ]


def _ruled_figures(commits: int, alone: RolledDay, large: RolledDay) -> list[Figure]:
    note = f"the rules of rolling alone, {commits:,} commits"
    return [
        Figure(
            "day-ruled-live", "a whole day, live files, the most", "files", [alone.live_files_max], 1_000, note=note
        ),
        Figure("day-ruled-amplification", "... write amplification", "x", [alone.amplification], 3.0, note=note),
        Figure(
            "day-ruled-amplification-large",
            f"... of commits of {_LARGE_COMMIT_BYTES:,} bytes, rolled files as large as what they are made of",
            "x",
            [large.amplification],
            _AMPLIFICATION_TARGET,
            note=f"the rules of rolling alone, {min(commits, _LARGE_COMMITS):,} commits",
        ),
    ]


def _flat(name: str, title: str, parts: Sequence[Part], of: str, *, hours: int = 1) -> Figure:
    """Medians over so many hours where single ones go up and down with what comes in turns."""
    first, last = (statistics.median(_of(some, of)) for some in (parts[:hours], parts[-hours:]))
    return Figure(name, f"... {title}", "x", [last / first], _FLAT_TARGET)


def _amplification(day: dict[str, Any]) -> float:
    return float((day["appended_bytes"] + day["rewritten_bytes"]) / day["appended_bytes"])


def _of(parts: Sequence[Part], name: str) -> list[float]:
    return [float(part[name]) for part in parts]


def _text(parts: Sequence[Part], name: str) -> str:
    """Every third hour."""
    return " ".join(f"{value:.3g}" for value in _of(parts, name)[::3])
