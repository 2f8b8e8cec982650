"""When the next Delta commit of a partition may happen.

Every commit is a version file and a small data file, and native Delta readers list them all; so a busy partition is
paced: a token bucket allows `burst` commits at once and one per `interval_ms` in the long run. A commit that is worth
a file of its own (`FULL_COMMIT_BYTES`) never waits: pacing costs latency under load, not throughput.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FULL_COMMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pacing:
    """0 <= tokens <= burst. `interval_ms` 0: commits are never paced."""

    interval_ms: int
    burst: int
    tokens: float
    refilled_at_ms: float


def start_pacing(interval_ms: int, burst: int, now_ms: float) -> Pacing:
    return Pacing(interval_ms, burst, float(burst), now_ms)


def refill(pacing: Pacing, now_ms: float) -> Pacing:
    if pacing.interval_ms == 0:
        return pacing
    gained = max(0.0, now_ms - pacing.refilled_at_ms) / pacing.interval_ms
    return replace(pacing, tokens=min(float(pacing.burst), pacing.tokens + gained), refilled_at_ms=now_ms)


def decide_delay_ms(pacing: Pacing, waiting_bytes: int) -> float:
    """How long the next commit has to wait for a token, as of the last `refill`; 0: it may go now."""
    if pacing.interval_ms == 0 or waiting_bytes >= FULL_COMMIT_BYTES or pacing.tokens >= 1:
        return 0.0
    return (1 - pacing.tokens) * pacing.interval_ms


def spend(pacing: Pacing) -> Pacing:
    return pacing if pacing.interval_ms == 0 else replace(pacing, tokens=max(0.0, pacing.tokens - 1))
