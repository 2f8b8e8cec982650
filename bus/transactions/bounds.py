"""Bounds of requests about transactional ids and of the transactions in memory, and the partition of
`__transaction_state` that has an id.

Guards one promise: what is accepted can be decoded again by a later coordinator, and its record fits the log:
PARTITIONS_MAX * (2 names + 4 numbers) + GROUPS_MAX * (an id + a number) < 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bus.client_texts import check_text
from bus.errors import ErrorCode, Refused
from bus.machine import java_abs, java_hash
from bus.settings.keys import INT_MAX, LONG_MAX
from bus.transactions import requests as rq
from bus.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction

ID_BYTES_MAX = 249  # for a transactional id; the log of a partition's table has it too
GROUP_ID_BYTES_MAX = 1_024
NAME_BYTES_MAX = 249  # for a topic
TOPIC_ID_BYTES_MAX = 64
PARTITIONS_MAX = 2_000  # in one transaction
GROUPS_MAX = 100  # in one transaction
NUMBER_MAX = (LONG_MAX - 1) // 2  # a proof in a table has twice the number and one


def check_request(command: rq.TransactionCommand, *, timeout_max_ms: int) -> Refused | None:
    """Why the command is refused, of any id; None if it may be decided on. INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT."""
    refused = check_transactional_id(command.transactional_id)
    if refused is not None:
        return refused
    match command:
        case rq.InitProducerId():
            return _check_identity(command) or _check_timeout(command, timeout_max_ms)
        case rq.AddPartitions():
            return _first(
                check_text("the name of a topic", partition.topic, NAME_BYTES_MAX)
                or check_text("the id of a topic", partition.topic_id, TOPIC_ID_BYTES_MAX)
                or _check_number("a partition", partition.partition)
                for partition in command.partitions
            )
        case rq.AddOffsets():
            return check_text("a group id", command.group.group_id, GROUP_ID_BYTES_MAX) or _check_number(
                "a partition", command.group.offsets_partition
            )
        case rq.EndTransaction():
            return _first(_check_number("a last sequence", sequence) for sequence in command.last_sequences.values())
        case _:
            return None


def check_step(transactional_id: str, number: int, coordinator_partition: int) -> Refused | None:
    """Check a coordinator's request to a participant. INVALID_REQUEST."""
    refused = check_transactional_id(transactional_id)
    if refused is None and not 0 <= number <= NUMBER_MAX:
        found = f"{transactional_id}: expected the number of a transaction from 0 to {NUMBER_MAX}, found {number}"
        refused = Refused(ErrorCode.INVALID_REQUEST, found)
    return refused or _check_number("a coordinator's partition", coordinator_partition)


def check_transactional_id(transactional_id: str) -> Refused | None:
    """INVALID_REQUEST, as Kafka has it for an empty one."""
    if not transactional_id:
        return Refused(ErrorCode.INVALID_REQUEST, "expected a transactional id, found an empty one")
    return check_text("a transactional id", transactional_id, ID_BYTES_MAX)


def _check_identity(command: rq.InitProducerId) -> Refused | None:
    """Both of its parts, or none."""
    found = (command.producer_id, command.producer_epoch)
    if found == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) or min(found) >= 0:
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"{command.transactional_id}: expected a producer id and its epoch, or -1 for both, found {found[0]} and "
        f"{found[1]}",
    )


def _check_timeout(command: rq.InitProducerId, timeout_max_ms: int) -> Refused | None:
    if 0 < command.timeout_ms <= timeout_max_ms:
        return None
    return Refused(
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        f"{command.transactional_id}: expected a transaction time-out of 1 to {timeout_max_ms} ms "
        f"(transaction.max.timeout.ms), found {command.timeout_ms}",
    )


def _check_number(what: str, number: int) -> Refused | None:
    if 0 <= number <= INT_MAX:
        return None
    return Refused(ErrorCode.INVALID_REQUEST, f"expected {what} from 0 on, found {number}")


def _first(refusals: Iterable[Refused | None]) -> Refused | None:
    return next((refused for refused in refusals if refused is not None), None)


def coordinator_partition(transactional_id: str, count: int) -> int:
    """Return which of the `count` partitions of `__transaction_state` has this id: Kafka's choice, abs(hash) % n."""
    return java_abs(java_hash(transactional_id)) % count


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    """Bounds of the transactions that one broker holds in memory: one for each thing that a client can make grow, which
    are transactional ids and the partitions of their transactions. Each field is named after its key. A later try may
    succeed: transactions end, ids expire."""

    ids_max: int
    partitions_max: int


class TransactionTotals:
    """Counts the ids and partitions as states are replaced, so that a check against the bounds costs nothing."""

    def __init__(self, bounds: TransactionBounds) -> None:
        self._bounds = bounds
        self.ids = 0
        self.partitions = 0

    def replace(self, before: Transaction | None, after: Transaction | None) -> None:
        for transaction, sign in ((before, -1), (after, 1)):
            if transaction is not None:
                self.ids += sign
                self.partitions += sign * len(transaction.partitions)

    def check(self, command: rq.TransactionCommand, transaction: Transaction | None, *, now_ms: int) -> Refused | None:
        """Return COORDINATOR_NOT_AVAILABLE if the command would grow what has reached its bound. `transaction` is the
        command's."""
        match command:
            case rq.InitProducerId() if transaction is None and self.ids >= self._bounds.ids_max:
                bound = f"transactional.ids.count.max={self._bounds.ids_max}"
                return _refuse(command.transactional_id, self.ids, "transactional ids", bound)
            case rq.AddPartitions() if self.partitions >= self._bounds.partitions_max:
                known = () if transaction is None else transaction.partitions.keys()
                if any(partition not in known for partition in command.partitions):
                    bound = f"transaction.partitions.count.max={self._bounds.partitions_max}"
                    return _refuse(command.transactional_id, self.partitions, "partitions of transactions", bound)
        return None


def _refuse(transactional_id: str, found: int, what: str, bound: str) -> Refused:
    return Refused(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"{transactional_id}: the broker holds {found} {what}, expected fewer than {bound} for one more; retry later",
    )
