"""Which partition of `__transaction_state` has a transactional id: Kafka's choice, abs(hash) % n."""

from __future__ import annotations

from bus.java_hash import java_abs, java_hash


def coordinator_partition(transactional_id: str, count: int) -> int:
    """Of the `count` partitions the one that has this id."""
    return java_abs(java_hash(transactional_id)) % count
