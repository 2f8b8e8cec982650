"""What the leader of a table knows of the transactions that ended there: the proofs in its log, by transactional id.

Guards two promises: a transaction ends once in a table; and an id that has come back keeps its proof, however old the
decision to forget it is. Memory only: a proof counts once its version is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from bus.ports import AppliedTransaction
from bus.storage_delta.log.txns import Txn, transaction_txns

# One version takes so many transactional ids back: a line each.
_TAKEN_BACK_MAX = 1_000


class TransactionProofs:
    """`title` names the table in errors."""

    def __init__(self, title: str, txns: Mapping[str, Txn] | None = None) -> None:
        """`txns`: the `txn` actions of the log."""
        self._title = title
        self._txns: dict[str, Txn] = dict(transaction_txns(txns or {}))
        self._expired_ids: dict[str, None] = {}  # to be taken back by the next commits, in this order

    def version_of(self, transactional_id: str) -> int:
        """See `TransactionIndex.transaction_of`."""
        known = self._txns.get(transactional_id)
        return -1 if known is None else known.version

    def check(self, transactions: Sequence[AppliedTransaction]) -> None:
        """Raises AssertionError for one that has ended here, and for two of one id: a version says one thing of it."""
        ids = [each.transactional_id for each in transactions]
        assert len(set(ids)) == len(ids), f"{self._title}: expected one transaction of each id, found {ids}"
        for each in transactions:
            ended = self.version_of(each.transactional_id)
            assert ended < each.aborted_version, (
                f"{self._title}: expected a transaction of {each.transactional_id} behind {ended}, found {each.number}"
            )

    def note_ended(self, ended: Mapping[str, int], taken_back: Sequence[str], now_ms: int) -> None:
        """What a version that is committed says: the `txn` version of each id of which a transaction ended, and the ids
        that it takes back."""
        self._txns.update({each: Txn(version, now_ms) for each, version in ended.items()})
        for transactional_id in taken_back:
            self._txns.pop(transactional_id, None)
        for transactional_id in (*ended, *taken_back):
            self._expired_ids.pop(transactional_id, None)

    # ------------------------------------------------------------------ ids that have expired

    def find_old(self, *, updated_before_ms: int) -> Mapping[str, int]:
        """See `TransactionIndex.old_transactions`."""
        return {
            transactional_id: txn.version
            for transactional_id, txn in self._txns.items()
            if txn.updated_ms < updated_before_ms and transactional_id not in self._expired_ids
        }

    def forget(self, ended: Mapping[str, int]) -> None:
        """See `TransactionIndex.forget_transactions`."""
        is_as_it_was = (each for each, version in ended.items() if self.version_of(each) == version)
        self._expired_ids.update(dict.fromkeys(is_as_it_was))

    def next_taken_back(self, transactions: Sequence[AppliedTransaction]) -> Sequence[str]:
        """The ids that the next version takes back beside `transactions`, which may be of ids that have come back."""
        come_back = {each.transactional_id for each in transactions}
        return list(islice((each for each in self._expired_ids if each not in come_back), _TAKEN_BACK_MAX))
