"""One partition's table: followed, or led by its single writer.

Guards two promises. Offsets are given once: `append` puts rows exactly behind the high watermark of the version before,
and the version's name can be created once; compaction replaces files, and neither gives nor moves an offset. And only
the leader changes anything: a table is opened as a follower, which reads; `lead` makes it the leader's, behind a fence
that keeps former leaders out. The cost of a commit does not depend on the size of the table: a commit lists no folder
and does no work per file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from bus.errors import Refused, StorageDamaged, StorageFault
from bus.model import LogBatch, RecordBatch
from bus.ports import (
    OFFSET_MAX,
    AppliedTransaction,
    Clock,
    CommitOutcome,
    Committed,
    Conflicted,
    Dropped,
    FoundOffset,
    LogFile,
    LogState,
    Pace,
    PreparedFiles,
    ProducerMatch,
    ProducerProgress,
    SwapKind,
    TransactionRows,
    Unknown,
    no_pace,
)
from bus.records.log_schema import LOG_SCHEMA, log_schema
from bus.storage_delta.files.data_files import EncodedFile, StreamedFile, encode_data_file, is_streamed
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_matching import later_progress
from bus.storage_delta.files.producer_spans import id_max_of
from bus.storage_delta.log.actions import (
    encode_abort,
    encode_append,
    encode_fence,
    encode_removal,
    encode_swap,
)
from bus.storage_delta.log.listing import LOG_FOLDER
from bus.storage_delta.log.recovery import (
    make_writable,
    recover,
    remove_leftovers,
    remove_old_leftovers,
    set_torn_aside,
)
from bus.storage_delta.log.replaced_versions import commit_again
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.summary import find_transaction
from bus.storage_delta.log.table_metadata import bring_up_to_date
from bus.storage_delta.log.txns import (
    decode_producers,
    decode_transactions,
    encode_proofs,
    forgotten_id_max_of,
)
from bus.storage_delta.log.writer import FilesUnderWay, LogWriter
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.maintenance.rewrites import Rewrites
from bus.storage_delta.maintenance.swaps import PreparedSwap
from bus.storage_delta.partition_reader import FollowingReader
from bus.storage_delta.staging import DeltaStagedTransactions, StagedCache
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.transaction_proofs import TransactionProofs
from bus.system_clock import SystemClock

# So many races for a fence may be lost to former leaders and other engines: each of them steps down, or is rare.
_OF_ANOTHER_LEADER = "a version of another leader"
_FENCE_TRIES_MAX = 100


def _unnamed_id_max(file: LiveFile) -> int:
    """The largest producer id of a file that another engine wrote, -1 of ours: its commit need not have had the `txn`
    of each producer, and one without is as good as forgotten."""
    return -1 if file.is_ours else id_max_of(file.producers)


class DeltaPartitionTable:
    """Implements `bus.ports.PartitionTable`."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        topic_id: str,
        cache: ReadCache,
        clock: Clock | None = None,
        value_type: pa.DataType | None = None,
        incarnation: str | None = None,
        staged_cache: StagedCache | None = None,
    ) -> None:
        """Opens the table as a follower: nothing is changed. Raises `StorageDamaged`. `clock`: the machine's, if none
        is given. `incarnation` tells this life of the broker from all others."""
        self._store = store
        self._clock = clock or SystemClock()
        self._folder = folder
        self._schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
        self._value_type = value_type
        self._cache = cache
        self._following = FollowingReader(store, folder, self._schema, cache, topic_id=topic_id, value_type=value_type)
        self._reader = self._following.reader
        self._led_epoch: int | None = None  # None: this table is followed
        self._is_overtaken = False  # it was led, and another leader has committed since
        self._under_way = FilesUnderWay(store, folder)
        self._log = LogWriter(
            store, folder, self._under_way, clock=self._clock, topic_id=topic_id, incarnation=incarnation
        )
        self._forgotten_id_max = self._told_forgotten_id_max = -1  # as memory knows it; as the log says
        self._idle_since_ms = 0  # producers that were idle since then are forgotten
        self._cleanup = Cleanup(
            store,
            folder,
            self._reader,
            self._log,
            self._under_way,
            topic_id=topic_id,
            clock=self._clock,
            is_led=lambda: self._led_epoch is not None,
            commit_fence=self._commit_fence,
        )
        self._rewrites = Rewrites(
            store,
            folder,
            self._schema,
            self._reader,
            self._log,
            self._under_way,
            find_removed=self._cleanup.find_removed,
        )
        self._producers: dict[int, ProducerProgress] = {}  # while this table is led
        self._proofs = TransactionProofs(folder)  # the same
        self._staged = DeltaStagedTransactions(store, folder, value_type, staged_cache, topic_id)

    @property
    def state(self) -> LogState:
        return self._reader.state

    @property
    def producer_progress(self) -> Mapping[int, ProducerProgress]:
        return decode_producers(self._following.txns) if self._led_epoch is None else dict(self._producers)

    @property
    def staged(self) -> DeltaStagedTransactions:
        return self._staged

    def transaction_of(self, transactional_id: str) -> int:
        if self._led_epoch is None:
            return decode_transactions(self._following.txns).get(transactional_id, -1)
        return self._proofs.version_of(transactional_id)

    def has_written(self, transaction: AppliedTransaction) -> bool | None:
        progress = self._producers if self._led_epoch is not None else self.producer_progress
        told = progress.get(transaction.producer_id)
        if told is not None:
            return told.producer_epoch >= transaction.producer_epoch
        forgotten = max(self._forgotten_id_max, self._told_forgotten_id_max)
        return None if transaction.producer_id <= forgotten else False

    # ------------------------------------------------------------------ following and leading

    def follow(self) -> LogState:
        self._led_epoch = None
        try:
            self._following.refresh()
        except StorageDamaged:
            self._following.load()  # a torn version is no damage if it is the last one
        if self._is_overtaken:
            self._reader.view = self._reader.view.overtaken(True)
        return self.state

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        for _ in range(_FENCE_TRIES_MAX):
            self._catch_up()
            state = self.state
            is_fenced = fence and self._log.find_last_leader(state.version) == (leader_epoch, self._log.incarnation)
            if state.leader_epoch > leader_epoch or (state.leader_epoch == leader_epoch and fence and not is_fenced):
                return Conflicted(state.version, state.leader_epoch, _OF_ANOTHER_LEADER, is_rival=True)
            if is_fenced or not fence:
                # Without a fence there is no other leader, so what the opening has found is still there.
                found = self._following.loaded if not fence else None
                snapshot = found or self._following.take_stock()
                if snapshot.leader_epoch <= leader_epoch:
                    snapshot = self._repair(snapshot, leader_epoch, now_ms, is_alone=not fence)
                if snapshot.leader_epoch > leader_epoch:  # it came behind the own fence
                    return Conflicted(snapshot.version, snapshot.leader_epoch, _OF_ANOTHER_LEADER, is_rival=True)
                self._begin_to_lead(snapshot, leader_epoch)
                return Committed(self.state.version, self.state.high_watermark)
            loaded = self._following.loaded
            if loaded is not None and loaded.findings.torn_version is not None:
                set_torn_aside(self._store, f"{self._folder}/{LOG_FOLDER}", loaded.findings.torn_version)
            self._log.start_behind(state.version)
            outcome = self._commit_fence(leader_epoch, now_ms)
            if isinstance(outcome, Unknown):
                return outcome
        return Conflicted(self.state.version, None, f"versions of others, {_FENCE_TRIES_MAX} times in a row")

    def _catch_up(self) -> None:
        if not self._log.must_reload:
            self.follow()
            return
        self._led_epoch = None
        self._log.begin_reload(self.state.version)
        snapshot = self._following.load()
        self._log.end_reload(snapshot.version)

    def _repair(self, snapshot: Snapshot, leader_epoch: int, now_ms: int, *, is_alone: bool) -> Snapshot:
        """Put right what crashes and other programs have left, where that takes nothing away. Behind the fence: what
        lies there is not another leader's that is at work, but for unfinished files. `is_alone`: of no other process,
        either."""
        store, folder = self._store, self._folder
        if snapshot.findings.leftovers:
            if is_alone:
                remove_leftovers(store, f"{folder}/{LOG_FOLDER}")
            elif remove_old_leftovers(store, folder, snapshot.version):
                snapshot = self._following.load()
        for name in snapshot.findings.replaced:
            if commit_again(store, folder, snapshot, name, self._log.sign(leader_epoch, now_ms)):
                snapshot = self._following.load()
        recover(store, folder, snapshot)
        if self._value_type is not None:
            signature = self._log.sign(leader_epoch, now_ms)
            if bring_up_to_date(store, folder, snapshot, self._value_type, self._cache, signature):
                snapshot = self._following.load()
        return snapshot

    def _begin_to_lead(self, snapshot: Snapshot, leader_epoch: int) -> None:
        self._log.begin_to_lead(leader_epoch, snapshot.version)
        self._led_epoch, self._is_overtaken = leader_epoch, False
        self._reader.view = self._reader.view.overtaken(False)
        self._take(snapshot)

    def _check_leads(self, leader_epoch: int) -> None:
        """Raises AssertionError for a caller that commits on a table that it does not lead, or under an older epoch."""
        led_epoch, state = self._led_epoch, self.state
        assert led_epoch is not None, f"{self._folder}: expected a table that is led, found one that is followed"
        assert leader_epoch >= max(led_epoch, state.leader_epoch), (
            f"{self._folder}: expected a commit under leader epoch {max(led_epoch, state.leader_epoch)}, found one "
            f"under {leader_epoch}"
        )
        assert not self._log.must_reload, f"{self._folder}: commit after an outcome that asked for a reload"

    def is_last(self) -> bool:
        """Whether no other writer has come behind the last version that memory knows."""
        return self._log.is_last(self.state.version)

    def is_at_end(self) -> bool:
        """Whether no version at all has come behind it."""
        return self._log.is_at_end(self.state.version)

    # ------------------------------------------------------------------ the writer

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
        transactions: Sequence[AppliedTransaction] = (),
    ) -> CommitOutcome:
        state = self.state
        self._check_leads(leader_epoch)
        self._proofs.check(transactions)
        assert batches[0].base_offset == state.high_watermark, (
            f"{self._folder}: expected offset {state.high_watermark}, found {batches[0].base_offset}"
        )
        signature = self._log.sign(leader_epoch, now_ms)
        file, stats = self._write_rows(
            batches, signature.txn_id, compression=compression, now_ms=now_ms, notes=encode_proofs(transactions)
        )
        version = state.version + 1
        forgotten_id_max = self._forgotten_id_max
        data = encode_append(
            file,
            stats=stats,
            producers=producers,
            signature=signature,
            forgotten_id_max=forgotten_id_max if forgotten_id_max > self._told_forgotten_id_max else None,
            transactions=transactions,
            expired_ids=(expired_ids := self._proofs.next_taken_back(transactions)),
        )
        outcome = self._log.commit(version, data, signature, high_watermark=file.next_offset, new_paths=[file.path])
        if isinstance(outcome, Committed):
            self._reader.view = self._reader.view.appended(file, leader_epoch)
            self._under_way.settle([file.path])
            self._told_forgotten_id_max = max(self._told_forgotten_id_max, forgotten_id_max)
            for progress in producers:
                self._producers[progress.producer_id] = replace(progress, updated_ms=now_ms)
            ended = {each.transactional_id: each.applied_version for each in transactions}
            self._proofs.note_ended(ended, expired_ids, now_ms)
        return outcome

    def _write_rows(
        self,
        batches: Sequence[LogBatch],
        txn_id: str,
        *,
        compression: str,
        now_ms: int,
        notes: Mapping[str, str],
    ) -> tuple[LiveFile, str]:
        """As a data file that no version names yet, with its statistics. `txn_id` is that of the version too: it tells
        which file a version is about. Raises `StorageFault`; then no file stays."""
        encode = StreamedFile if is_streamed(batches) else encode_data_file
        encoded: StreamedFile | EncodedFile = encode(
            batches, self._schema, name_suffix=txn_id, compression=compression, committed_ms=now_ms, notes=notes
        )
        key = f"{self._folder}/{encoded.name}"
        self._under_way.add(encoded.name)
        try:
            if isinstance(encoded, StreamedFile):
                self._store.write_parts(key, encoded.parts())
                return encoded.describe()
            self._store.write_unique(key, encoded.data)
            return encoded.file, encoded.stats
        except StorageFault:
            self._under_way.discard([encoded.name])
            raise
        except BaseException:
            self._under_way.settle([encoded.name])
            raise

    def abort_transaction(self, transaction: AppliedTransaction, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._check_leads(leader_epoch)
        self._proofs.check([transaction])
        view, signature = self._reader.view, self._log.sign(leader_epoch, now_ms)
        version, high_watermark = view.state.version + 1, view.state.high_watermark
        expired_ids = self._proofs.next_taken_back([transaction])
        data = encode_abort(transaction, high_watermark=high_watermark, signature=signature, expired_ids=expired_ids)
        outcome = self._log.commit(version, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self._reader.view = view.fenced(leader_epoch)
            self._proofs.note_ended({transaction.transactional_id: transaction.aborted_version}, expired_ids, now_ms)
        return outcome

    def old_transactions(self, *, updated_before_ms: int) -> Mapping[str, int]:
        return self._proofs.find_old(updated_before_ms=updated_before_ms)

    def forget_transactions(self, ended: Mapping[str, int]) -> None:
        self._proofs.forget(ended)

    def reload(self) -> LogState:
        if self._led_epoch is None:
            return self.follow()
        self._log.begin_reload(self.state.version)
        snapshot = self._following.load()
        if self._log.is_overtaken(snapshot):
            # What is left lying there is the other leader's to put right.
            self._led_epoch, self._is_overtaken = None, True
            self._reader.view = self._reader.view.overtaken(True)
        else:
            make_writable(self._store, self._folder, snapshot)
            self._take(snapshot)
        self._log.start_behind(snapshot.version)
        self._log.end_reload(snapshot.version)
        return self.state

    def _take(self, snapshot: Snapshot) -> None:
        """As its leader."""
        self._following.forget()
        self._cleanup.take(snapshot)
        self._producers = decode_producers(snapshot.txns)
        self._proofs = TransactionProofs(self._folder, snapshot.txns)
        self._told_forgotten_id_max = forgotten_id_max_of(snapshot.txns)
        self._forgotten_id_max = max(
            [self._forgotten_id_max, self._told_forgotten_id_max, *map(_unnamed_id_max, snapshot.files)]
        )

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        return self._reader.read(offset, end_offset=end_offset, max_bytes=max_bytes)

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        return self._reader.find_timestamp(timestamp_ms)

    def find_max_timestamp(self) -> FoundOffset | None:
        return self._reader.find_max_timestamp()

    def forget_producers(self, *, updated_before_ms: int) -> int:
        idle = [key for key, progress in self._producers.items() if progress.updated_ms < updated_before_ms]
        self._forgotten_id_max = max([self._forgotten_id_max, *idle])
        for producer_id in idle:
            del self._producers[producer_id]
        self._idle_since_ms = max(self._idle_since_ms, updated_before_ms)
        return self._forgotten_id_max

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        return self._reader.match_producer(batch)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        rows = self._reader.find_last_sequence(producer_id)
        told = self._producers.get(producer_id)
        if told is None:  # forgotten by memory, not by the log
            told = decode_producers(self._cleanup.load_txns()).get(producer_id)
        return later_progress(rows, told)

    def find_rows(self, transaction: AppliedTransaction) -> TransactionRows | None:
        version = self.state.version
        found = find_transaction(self._store, self._folder, transaction, last_version=version)
        if found is not None and found.base_offset >= 0:
            return found
        offset = self._reader.find_first_offset(transaction.producer_id, transaction.producer_epoch)
        if offset is None:
            return None
        return TransactionRows(version if found is None else found.version, offset)

    def high_watermark_at(self, version: int) -> int | None:
        return self._reader.high_watermark_at(version)

    # ------------------------------------------------------------------ maintenance

    @property
    def key_compaction_backlog(self) -> int:
        return len(self._rewrites.find_compaction_backlog())

    @property
    def key_compaction_backlog_bytes(self) -> int:
        return sum(file.size_bytes for file in self._rewrites.find_compaction_backlog())

    @property
    def files(self) -> Sequence[LiveFile]:
        return self._reader.view.live_files

    @property
    def compacted_to(self) -> int:
        return self._reader.view.compacted_to

    def prepare_key_compaction(
        self, *, now_ms: int, tombstone_retention_ms: int, end_offset: int = OFFSET_MAX, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        return self._rewrites.prepare_key_compaction(
            now_ms=now_ms, tombstone_retention_ms=tombstone_retention_ms, end_offset=end_offset, pace=pace
        )

    def prepare_roll(
        self,
        files: Sequence[LogFile],
        *,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        return self._rewrites.prepare_roll(
            files, compression=compression, now_ms=now_ms, tombstone_retention_ms=tombstone_retention_ms, pace=pace
        )

    def check_swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> PreparedFiles | Refused:
        return self._rewrites.check_swap(removes, adds, kind)

    def swap_files(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._check_leads(leader_epoch)
        assert isinstance(prepared, PreparedSwap), f"expected what this table prepared, found {prepared}"
        view, removes = self._reader.view, prepared.removes
        first = view.find_run(removes)
        if first is None or prepared.reloads != self._log.reloads:
            paths = [file.path for file, _ in prepared.adds]
            if first is not None and prepared.is_adopted:  # still fit, so their author may ask once more
                self._under_way.settle(paths)
            else:
                self._under_way.discard(paths)
            changed = "the files have" if first is None else "the log was read again and may have"
            return Conflicted(view.state.version, None, f"{changed} changed since others were prepared for them")
        signature = self._log.sign(leader_epoch, now_ms, prepared.txn_id)
        adds = [(replace(file, committed_ms=now_ms), stats) for file, stats in prepared.adds]
        data = encode_swap(
            adds,
            removes,
            operation=prepared.operation,
            high_watermark=view.state.high_watermark,
            compacted_to=prepared.compacted_to,
            signature=signature,
        )
        new_files = [file for file, _ in adds]
        outcome = self._log.commit(
            view.state.version + 1,
            data,
            signature,
            high_watermark=view.state.high_watermark,
            new_paths=[file.path for file in new_files],
        )
        if isinstance(outcome, Committed):
            self._cleanup.note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.swapped(
                new_files,
                first=first,
                removed_count=len(removes),
                compacted_to=prepared.compacted_to,
                leader_epoch=leader_epoch,
            )
            self._under_way.settle(file.path for file in new_files)
        return outcome

    def advance_log_start(self, offset: int, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._check_leads(leader_epoch)
        view = self._reader.view
        assert view.state.log_start < offset <= view.state.high_watermark, (
            f"{self._folder}: expected a log start above {view.state.log_start} and up to "
            f"{view.state.high_watermark}, found {offset}"
        )
        signature = self._log.sign(leader_epoch, now_ms)
        removes = [file.path for file in view.live_files if file.next_offset <= offset]
        data = encode_removal(
            removes,
            high_watermark=view.state.high_watermark,
            log_start=offset,
            signature=signature,
        )
        outcome = self._log.commit(view.state.version + 1, data, signature, high_watermark=view.state.high_watermark)
        if isinstance(outcome, Committed):
            self._cleanup.note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.started_at(offset, removed_count=len(removes), leader_epoch=leader_epoch)
        return outcome

    def _commit_fence(self, leader_epoch: int, now_ms: int) -> CommitOutcome:
        view = self._reader.view
        signature = self._log.sign(leader_epoch, now_ms)
        data = encode_fence(high_watermark=view.state.high_watermark, signature=signature)
        version, high_watermark = view.state.version + 1, view.state.high_watermark
        outcome = self._log.commit(version, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self._reader.view = view.fenced(leader_epoch)
        return outcome

    # ------------------------------------------------------------------ cleanup

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        return self._cleanup.drop_old_versions(
            committed_before_ms=committed_before_ms, count_max=count_max, removed_before_ms=removed_before_ms
        )

    def is_checkpoint_needed_to_drop(self, *, committed_before_ms: int) -> bool:
        return self._cleanup.is_checkpoint_needed_to_drop(committed_before_ms=committed_before_ms)

    def find_orphans(self) -> frozenset[str]:
        return self._cleanup.find_orphans()

    def delete_orphans(self, orphans: frozenset[str]) -> int:
        return self._cleanup.delete_orphans(orphans)

    @property
    def is_checkpoint_due(self) -> bool:
        return self._cleanup.is_checkpoint_due

    def write_checkpoint(self) -> None:
        self._cleanup.write_checkpoint(idle_since_ms=self._idle_since_ms)
