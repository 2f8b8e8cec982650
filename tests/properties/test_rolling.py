"""Any stream of commits: few small files stay, and each byte is rewritten a few times only."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.partition_log.log_life import SMALL_FILES_MAX, RollingRules
from tests.support.rolled_log import RolledLog

SEGMENT_BYTES = 1_000_000
LOOK_COMMITS = 20

# Phases: so many commits of one size, so far apart.
PHASES = st.lists(
    st.tuples(
        st.integers(1, 1_500),
        st.sampled_from([1, 40, 900, 20_000, 260_000, 499_999, 500_000, 2_000_000]),
        st.sampled_from([1, 10, 1_000, 3_600_000]),
    ),
    max_size=8,
)


@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(PHASES, st.sampled_from([1_000, 86_400_000]), st.sampled_from([0, 300]))
def test_any_stream_keeps_few_small_files_and_rewrites_each_byte_a_few_times(
    phases: list[tuple[int, int, int]], segment_ms: int, compacted_to: int
) -> None:
    log = RolledLog(RollingRules(SEGMENT_BYTES, segment_ms), compacted_to=compacted_to)
    commits = 0
    for count, size_bytes, apart_ms in phases:
        for _ in range(count):
            log.append(size_bytes, after_ms=apart_ms)
            commits += 1
            if commits % LOOK_COMMITS == 0:
                log.look()
                full = log.full_count
                assert len(log.files) - full < SMALL_FILES_MAX + full
                assert log.live_max - full < 1_000 + full
    assert all(before.next_offset == after.base_offset for before, after in zip(log.files, log.files[1:], strict=False))
    assert log.rewritten_bytes <= 3 * log.appended_bytes
    if log.files:
        assert (log.files[0].base_offset, log.files[-1].next_offset) == (0, commits)
