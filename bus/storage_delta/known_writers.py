"""Knowledge of a table about its writers: how far idempotent producers have come, and which transactions have ended.

Guards three promises: a producer id above the largest that was forgotten, and without progress, never wrote here; a
transaction ends once in a table; and an id that has come back keeps its proof, however old the decision to forget it
is. Of a table that is followed, the log says it all; its leader keeps it in memory, and there it counts once the
version that says it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from bus.model import RecordBatch
from bus.ports import AppliedTransaction, CommitOutcome, Committed, ProducerMatch, ProducerProgress, TransactionRows
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_matching import later_progress
from bus.storage_delta.files.producer_spans import id_max_of
from bus.storage_delta.leadership import Leadership
from bus.storage_delta.log.actions import encode_abort
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.summary import find_transaction
from bus.storage_delta.log.txns import Txn, decode_producers, decode_transactions, forgotten_id_max_of, transaction_txns
from bus.storage_delta.log.writer import LogWriter
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.partition_reader import FollowingReader
from bus.storage_delta.staging import DeltaStagedTransactions
from bus.storage_delta.stores.store import ObjectStore

# The number of transactional ids that one version takes back, a line each.
_TAKEN_BACK_MAX = 1_000


def _unnamed_id_max(file: LiveFile) -> int:
    """The largest producer id of a file that another engine wrote, -1 of ours: its commit need not have had the `txn`
    of each producer, and one without is as good as forgotten."""
    return -1 if file.is_ours else id_max_of(file.producers)


class DeltaProducers:
    """Implements `bus.ports.TableProducers`."""

    def __init__(self, following: FollowingReader, leadership: Leadership, cleanup: Cleanup) -> None:
        self._following = following
        self._reader = following.reader
        self._leadership = leadership
        self._cleanup = cleanup
        self._progress: dict[int, ProducerProgress] = {}  # while the table is led
        self._forgotten_id_max = self._logged_forgotten_id_max = -1  # according to memory; according to the log

    @property
    def progress(self) -> Mapping[int, ProducerProgress]:
        return dict(self._progress) if self._leadership.is_led else decode_producers(self._following.txns)

    def forget(self, *, updated_before_ms: int) -> int:
        idle = [key for key, progress in self._progress.items() if progress.updated_ms < updated_before_ms]
        self._forgotten_id_max = max([self._forgotten_id_max, *idle])
        for producer_id in idle:
            del self._progress[producer_id]
        self._cleanup.leave_out_idle(updated_before_ms)
        return self._forgotten_id_max

    def match(self, batch: RecordBatch) -> ProducerMatch:
        return self._reader.match_producer(batch)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        rows = self._reader.find_last_sequence(producer_id)
        known = self._progress.get(producer_id)
        if known is None:  # forgotten by memory, not by the log
            known = decode_producers(self._cleanup.load_txns()).get(producer_id)
        return later_progress(rows, known)

    def has_written(self, producer_id: int, epoch: int) -> bool | None:
        """Return True if the table has had rows of that epoch or a later one; None if it may have forgotten the
        producer."""
        known = (self._progress if self._leadership.is_led else self.progress).get(producer_id)
        if known is not None:
            return known.producer_epoch >= epoch
        return None if producer_id <= max(self._forgotten_id_max, self._logged_forgotten_id_max) else False

    @property
    def unlogged_forgotten_id_max(self) -> int | None:
        """The largest producer id that was forgotten, for the next version to say; None: the log says it."""
        return self._forgotten_id_max if self._forgotten_id_max > self._logged_forgotten_id_max else None

    def note_committed(self, progress: Iterable[ProducerProgress], forgotten_id_max: int | None) -> None:
        """Take over the contents of a version once it is committed."""
        if forgotten_id_max is not None:
            self._logged_forgotten_id_max = forgotten_id_max
        self._progress.update((each.producer_id, each) for each in progress)

    def take(self, snapshot: Snapshot) -> None:
        """Take over the log's contents, which the table's leader has just read."""
        self._progress = decode_producers(snapshot.txns)
        self._logged_forgotten_id_max = forgotten_id_max_of(snapshot.txns)
        self._forgotten_id_max = max(
            [self._forgotten_id_max, self._logged_forgotten_id_max, *map(_unnamed_id_max, snapshot.files)]
        )


class DeltaTransactions:
    """Implements `bus.ports.TableTransactions`. The proofs of a table that is led are in memory."""

    def __init__(
        self,
        store: ObjectStore,
        following: FollowingReader,
        log: LogWriter,
        leadership: Leadership,
        producers: DeltaProducers,
        staged: DeltaStagedTransactions,
    ) -> None:
        self._store = store
        self._folder = following.reader.folder
        self._following = following
        self._reader = following.reader
        self._log = log
        self._leadership = leadership
        self._producers = producers
        self.staged = staged
        self._txns: dict[str, Txn] = {}  # the proofs that the leader knows
        self._expired_ids: dict[str, None] = {}  # to be taken back by the next commits, in this order

    def take(self, snapshot: Snapshot) -> None:
        """Take over the log's contents, which the table's leader has just read."""
        self._txns, self._expired_ids = dict(transaction_txns(snapshot.txns)), {}

    def version_of(self, transactional_id: str) -> int:
        if self._leadership.is_led:
            return self._proved(transactional_id)
        return decode_transactions(self._following.txns).get(transactional_id, -1)

    def _proved(self, transactional_id: str) -> int:
        known = self._txns.get(transactional_id)
        return -1 if known is None else known.version

    def has_written(self, transaction: AppliedTransaction) -> bool | None:
        return self._producers.has_written(transaction.producer_id, transaction.producer_epoch)

    def find_rows(self, transaction: AppliedTransaction) -> TransactionRows | None:
        version = self._reader.state.version
        found = find_transaction(self._store, self._folder, transaction, last_version=version)
        if found is not None and found.base_offset >= 0:
            return found
        offset = self._reader.find_first_offset(transaction.producer_id, transaction.producer_epoch)
        if offset is None:
            return None
        return TransactionRows(version if found is None else found.version, offset)

    def abort(self, transaction: AppliedTransaction, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._leadership.check(leader_epoch)
        self.check([transaction])
        view, signature = self._reader.view, self._log.sign(leader_epoch, now_ms)
        version, high_watermark = view.state.version + 1, view.state.high_watermark
        expired_ids = self.next_taken_back([transaction])
        data = encode_abort(transaction, high_watermark=high_watermark, signature=signature, expired_ids=expired_ids)
        outcome = self._log.commit(version, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self._reader.view = view.fenced(leader_epoch)
            self.note_ended({transaction.transactional_id: transaction.aborted_version}, expired_ids, now_ms)
        return outcome

    def find_old(self, *, updated_before_ms: int) -> Mapping[str, int]:
        return {
            transactional_id: txn.version
            for transactional_id, txn in self._txns.items()
            if txn.updated_ms < updated_before_ms and transactional_id not in self._expired_ids
        }

    def forget(self, ended: Mapping[str, int]) -> None:
        is_as_it_was = (each for each, version in ended.items() if self._proved(each) == version)
        self._expired_ids.update(dict.fromkeys(is_as_it_was))

    # ------------------------------------------------------------------ commits of the leader

    def check(self, transactions: Sequence[AppliedTransaction]) -> None:
        """Raises AssertionError for one that has ended here, and for two of one id: a version says one thing of it."""
        ids = [each.transactional_id for each in transactions]
        assert len(set(ids)) == len(ids), f"{self._folder}: expected one transaction of each id, found {ids}"
        for each in transactions:
            ended = self._proved(each.transactional_id)
            assert ended < each.aborted_version, (
                f"{self._folder}: expected a transaction of {each.transactional_id} behind {ended}, found {each.number}"
            )

    def note_ended(self, ended: Mapping[str, int], taken_back: Sequence[str], now_ms: int) -> None:
        """Take over what a version says, once it is committed: the `txn` version of each id of which a transaction
        ended, and the ids that it takes back.
        """
        self._txns.update({each: Txn(version, now_ms) for each, version in ended.items()})
        for transactional_id in taken_back:
            self._txns.pop(transactional_id, None)
        for transactional_id in (*ended, *taken_back):
            self._expired_ids.pop(transactional_id, None)

    def next_taken_back(self, transactions: Sequence[AppliedTransaction]) -> Sequence[str]:
        """The ids that the next version takes back beside `transactions`, which may be of ids that have come back."""
        come_back = {each.transactional_id for each in transactions}
        return list(islice((each for each in self._expired_ids if each not in come_back), _TAKEN_BACK_MAX))
