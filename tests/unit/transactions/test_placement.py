from __future__ import annotations

import pytest

from bus.transactions.bounds import coordinator_partition


@pytest.mark.parametrize(("transactional_id", "absolute"), [("", 0), ("billing", 109829509), ("polygenelubricants", 0)])
def test_id_is_placed_as_kafka_does(transactional_id: str, absolute: int) -> None:
    for count in (1, 7, 50):
        assert coordinator_partition(transactional_id, count) == absolute % count
