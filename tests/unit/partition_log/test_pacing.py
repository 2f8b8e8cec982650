from __future__ import annotations

from bus.partition_log.appends import FULL_COMMIT_BYTES, decide_delay_ms, refill, spend, start_pacing


def test_idle_partition_commits_at_once_and_a_busy_one_is_held_to_its_rate() -> None:
    pacing = start_pacing(interval_ms=10, burst=3, now_ms=0)
    for _ in range(3):
        assert decide_delay_ms(pacing, 1) == 0
        pacing = spend(pacing)
    assert decide_delay_ms(pacing, 1) == 10
    assert decide_delay_ms(refill(pacing, 4), 1) == 6
    assert decide_delay_ms(refill(pacing, 10), 1) == 0


def test_tokens_never_exceed_the_burst() -> None:
    pacing = refill(start_pacing(interval_ms=10, burst=2, now_ms=0), 1_000_000)
    assert spend(spend(pacing)).tokens == 0


def test_full_commit_never_waits_and_leaves_no_debt() -> None:
    pacing = spend(start_pacing(interval_ms=10, burst=1, now_ms=0))
    assert decide_delay_ms(pacing, FULL_COMMIT_BYTES) == 0
    assert spend(pacing).tokens == 0


def test_interval_of_zero_means_no_pacing() -> None:
    pacing = start_pacing(interval_ms=0, burst=1, now_ms=0)
    for _ in range(100):
        pacing = spend(refill(pacing, 0))
        assert decide_delay_ms(pacing, 1) == 0


def test_clock_that_goes_back_takes_no_tokens_away() -> None:
    pacing = spend(start_pacing(interval_ms=10, burst=1, now_ms=100))
    assert refill(pacing, 50).tokens == 0
