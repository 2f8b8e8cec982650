from __future__ import annotations

import pytest

from bus.partition_log.cleaning import FILES_MAX, FILES_MIN, Backlog, decide_internal_compaction


@pytest.mark.parametrize(
    ("backlog", "is_due"),
    [
        (Backlog(FILES_MIN - 1, 10**9, 0), False),
        (Backlog(FILES_MIN, 1, 0), True),
        (Backlog(FILES_MIN, 100, 100), False),
        (Backlog(FILES_MIN, 101, 100), True),
        (Backlog(FILES_MAX - 1, 1, 10**9), False),
        (Backlog(FILES_MAX, 1, 10**9), True),
    ],
)
def test_many_files_or_more_than_was_compacted_before_make_it_due(backlog: Backlog, is_due: bool) -> None:
    assert decide_internal_compaction(backlog) is is_due


def test_what_is_rewritten_stays_within_twice_what_was_appended_plus_a_share_of_the_compacted() -> None:
    file_bytes, key_bytes_max = 10, 3_000
    compacted = appended = rewritten = commits = 0
    backlog = Backlog(0, 0, 0)
    for _ in range(20_000):
        commits, appended = commits + 1, appended + file_bytes
        backlog = Backlog(backlog.file_count + 1, backlog.size_bytes + file_bytes, compacted)
        if decide_internal_compaction(backlog):
            compacted = min(key_bytes_max, compacted + backlog.size_bytes)
            rewritten += compacted
            backlog = Backlog(0, 0, compacted)
        assert backlog.file_count < FILES_MAX
    assert 0 < rewritten <= 2 * appended + commits * key_bytes_max // FILES_MAX
