"""The records of `__transaction_state`, and their form as keyed rows of that log.

Guards two promises: what was written is what is read back, for ever; and all records of a transactional id have one
key, so that key compaction keeps its last one, which tells all that is durable of it. Rows come from disk, so decoding
checks and never asserts. The key is the transactional id in UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    AbortCause,
    AppliedRows,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)


@dataclass(frozen=True, slots=True)
class TransactionLogged:
    """All that is durable of a transactional id, as it is after a change; the fields are those of `Transaction`."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    update_ms: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    partitions: Mapping[TransactionPartition, int] = field(default_factory=dict)
    groups: tuple[TransactionGroup, ...] = ()
    start_ms: int = NO_TIME
    abort_cause: AbortCause | None = None
    results: Mapping[TransactionPartition, AppliedRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionExpired:
    """A tombstone: nothing is known of the id any more."""

    transactional_id: str


LoggedRecord = TransactionLogged | TransactionExpired
LOGGED = (TransactionLogged, TransactionExpired)  # for isinstance
