"""How much of transactions one broker holds in memory, and when it takes no more.

Guards one bound for each thing that a client can make grow: transactional ids, and the partitions of their
transactions. Counted as states are replaced, so that a look costs nothing. What is refused may succeed later:
transactions end, ids expire.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.errors import ErrorCode, Refused
from bus.transactions.requests import AddPartitions, InitProducerId, TransactionCommand
from bus.transactions.state import Transaction


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    """Each is named after its key."""

    ids_max: int
    partitions_max: int


class TransactionTotals:
    def __init__(self, bounds: TransactionBounds) -> None:
        self._bounds = bounds
        self.ids = 0
        self.partitions = 0

    def replace(self, before: Transaction | None, after: Transaction | None) -> None:
        for transaction, sign in ((before, -1), (after, 1)):
            if transaction is not None:
                self.ids += sign
                self.partitions += sign * len(transaction.partitions)

    def check(self, command: TransactionCommand, transaction: Transaction | None, *, now_ms: int) -> Refused | None:
        """COORDINATOR_NOT_AVAILABLE if the command would make grow what is at its bound. `transaction` is the
        command's."""
        match command:
            case InitProducerId() if transaction is None and self.ids >= self._bounds.ids_max:
                bound = f"transactional.ids.count.max={self._bounds.ids_max}"
                return _refuse(command.transactional_id, self.ids, "transactional ids", bound)
            case AddPartitions() if self.partitions >= self._bounds.partitions_max:
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
