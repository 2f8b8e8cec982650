"""The end of a producer's records, by its rows and by what the log remembers."""

from __future__ import annotations

import pytest

from bus.ports import ProducerProgress
from bus.storage_delta.files.producer_matching import later_progress


def at(epoch: int, sequence: int) -> ProducerProgress:
    return ProducerProgress(7, epoch, sequence)


@pytest.mark.parametrize(
    ("by_rows", "by_txn", "expected"),
    [
        (None, None, None),
        (at(1, 5), None, at(1, 5)),
        (None, at(1, 5), at(1, 5)),
        (at(1, 5), at(1, 9), at(1, 9)),  # the last rows were compacted
        (at(1, 9), at(1, 5), at(1, 9)),
        (at(2, 0), at(1, 9), at(2, 0)),  # another engine appended, without a txn
        (at(1, 9), at(2, 0), at(2, 0)),
        (at(1, 2**31 - 1), at(1, 3), at(1, 3)),  # sequences wrap
        (at(1, 3), at(1, 2**31 - 1), at(1, 3)),
    ],
)
def test_the_later_of_both_counts(
    by_rows: ProducerProgress | None, by_txn: ProducerProgress | None, expected: ProducerProgress | None
) -> None:
    assert later_progress(by_rows, by_txn) == expected
