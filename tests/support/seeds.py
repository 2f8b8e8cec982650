"""Settings of all random tests: how much of each is played, and where it begins.

`BUS_SEEDS` says how many seeds, `BUS_SEED` which one is the first, `BUS_FAULTS` how many faults a seed has and
`BUS_KILLS` how often a process is killed. Each test says how many it plays by itself: as many as the suite has time
for.
"""

from __future__ import annotations

import os


def seeds(count: int, first: int = 0) -> range:
    start = int(os.environ.get("BUS_SEED", first))
    return range(start, start + int(os.environ.get("BUS_SEEDS", count)))


def fault_count(count: int) -> int:
    return int(os.environ.get("BUS_FAULTS", count))


def kill_count(count: int) -> int:
    return int(os.environ.get("BUS_KILLS", count))
