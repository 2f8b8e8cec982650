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

from bus.errors import StorageDamaged, StorageFault
from bus.model import LogBatch
from bus.platform.system_clock import SystemClock
from bus.ports import (
    AppliedTransaction,
    Clock,
    CommitOutcome,
    Committed,
    Conflicted,
    LogState,
    ProducerProgress,
    Unknown,
)
from bus.records.log_schema import LOG_SCHEMA, log_schema
from bus.storage_delta.files.data_files import EncodedFile, StreamedFile, encode_data_file, is_small, is_streamed
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.known_writers import DeltaProducers, DeltaTransactions
from bus.storage_delta.leadership import Leadership
from bus.storage_delta.log.actions import encode_append, encode_protocol
from bus.storage_delta.log.listing import LOG_FOLDER
from bus.storage_delta.log.recovery import (
    commit_again,
    make_writable,
    recover,
    remove_leftovers,
    remove_old_leftovers,
    set_torn_aside,
)
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.table_metadata import bring_up_to_date
from bus.storage_delta.log.table_protocol import protocol_of
from bus.storage_delta.log.txns import (
    encode_proofs,
)
from bus.storage_delta.log.writer import FilesUnderWay, LogWriter
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.maintenance.rewrites import Rewrites
from bus.storage_delta.partition_reader import FollowingReader
from bus.storage_delta.staging import DeltaStagedTransactions, StagedCache
from bus.storage_delta.stores.store import ObjectStore

# This many races for a fence may be lost to former leaders, each of which steps down, and to other engines, which are
# rare.
_OF_ANOTHER_LEADER = "a version of another leader"
_FENCE_TRIES_MAX = 100


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
        self.log = self._following.reader
        self._under_way = under_way = FilesUnderWay(store, folder)
        self._writer = LogWriter(
            store, folder, under_way, clock=self._clock, topic_id=topic_id, incarnation=incarnation
        )
        self._leadership = Leadership(self.log, self._writer)
        self.cleanup = Cleanup(
            store, folder, self.log, self._writer, under_way, self._leadership, topic_id=topic_id, clock=self._clock
        )
        self.rewrites = Rewrites(
            store, folder, self._schema, self.log, self._writer, under_way, self._leadership, self.cleanup
        )
        staged = DeltaStagedTransactions(store, folder, value_type, staged_cache, topic_id)
        self.producers = DeltaProducers(self._following, self._leadership, self.cleanup)
        self.transactions = DeltaTransactions(
            store, self._following, self._writer, self._leadership, self.producers, staged
        )

    @property
    def state(self) -> LogState:
        return self.log.state

    # ------------------------------------------------------------------ following and leading

    def follow(self) -> LogState:
        self._leadership.end()
        try:
            self._following.refresh()
        except StorageDamaged:
            self._following.load()  # a torn version is no damage if it is the last one
        self._leadership.note_in_view()
        return self.state

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        for _ in range(_FENCE_TRIES_MAX):
            self._catch_up()
            state = self.state
            is_fenced = fence and self._writer.find_last_leader(state.version) == (
                leader_epoch,
                self._writer.incarnation,
            )
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
            self._writer.start_behind(state.version)
            outcome = self._leadership.commit_fence(leader_epoch, now_ms)
            if isinstance(outcome, Unknown):
                return outcome
        return Conflicted(self.state.version, None, f"versions of others, {_FENCE_TRIES_MAX} times in a row")

    def _catch_up(self) -> None:
        if not self._writer.must_reload:
            self.follow()
            return
        self._leadership.end()
        self._writer.begin_reload(self.state.version)
        snapshot = self._following.load()
        self._writer.end_reload(snapshot.version)

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
            if commit_again(store, folder, snapshot, name, self._writer.sign(leader_epoch, now_ms)):
                snapshot = self._following.load()
        recover(store, folder, snapshot)
        if self._value_type is not None:
            signature = self._writer.sign(leader_epoch, now_ms)
            if bring_up_to_date(store, folder, snapshot, self._value_type, self._cache, signature):
                snapshot = self._following.load()
        return snapshot

    def _begin_to_lead(self, snapshot: Snapshot, leader_epoch: int) -> None:
        self._writer.begin_to_lead(leader_epoch, snapshot.version)
        self._leadership.begin(leader_epoch)
        self._take(snapshot)

    def is_last(self) -> bool:
        """True if no other writer has committed behind the last version in memory."""
        return self._writer.is_last(self.state.version)

    def is_at_end(self) -> bool:
        """True if no version at all follows the last version in memory."""
        return self._writer.is_at_end(self.state.version)

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
        self._leadership.check(leader_epoch)
        self.transactions.check(transactions)
        assert batches[0].base_offset == state.high_watermark, (
            f"{self._folder}: expected offset {state.high_watermark}, found {batches[0].base_offset}"
        )
        signature = self._writer.sign(leader_epoch, now_ms)
        file, stats = self._write_rows(
            batches, signature.txn_id, compression=compression, now_ms=now_ms, notes=encode_proofs(transactions)
        )
        version = state.version + 1
        forgotten_id_max = self.producers.unlogged_forgotten_id_max
        data = encode_append(
            file,
            stats=stats,
            producers=producers,
            signature=signature,
            forgotten_id_max=forgotten_id_max,
            transactions=transactions,
            expired_ids=(expired_ids := self.transactions.next_taken_back(transactions)),
        )
        outcome = self._writer.commit(version, data, signature, high_watermark=file.next_offset, new_paths=[file.path])
        if isinstance(outcome, Committed):
            self.log.view = self.log.view.appended(file, leader_epoch)
            self._under_way.settle([file.path])
            if is_small(batches):
                self._cache.add_committed(f"{self._folder}/{file.path}", batches)
            self.producers.note_committed((replace(each, updated_ms=now_ms) for each in producers), forgotten_id_max)
            ended = {each.transactional_id: each.applied_version for each in transactions}
            self.transactions.note_ended(ended, expired_ids, now_ms)
        return outcome

    @property
    def is_managed(self) -> bool:
        return self.cleanup.is_managed

    def set_managed(self, wanted: bool, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._leadership.check(leader_epoch)
        view, signature = self.log.view, self._writer.sign(leader_epoch, now_ms)
        version, high_watermark = view.state.version + 1, view.state.high_watermark
        protocol = protocol_of(is_managed=wanted)
        data = encode_protocol(protocol, high_watermark=high_watermark, signature=signature)
        outcome = self._writer.commit(version, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self.log.view = view.fenced(leader_epoch)
            self.cleanup.is_managed = wanted
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
        """Write the batches as a data file that no version names yet, and return its entry and statistics. `txn_id` is
        also that of the version, and connects the two. Raises `StorageFault`; then no file stays."""
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

    def reload(self) -> LogState:
        if not self._leadership.is_led:
            return self.follow()
        self._writer.begin_reload(self.state.version)
        snapshot = self._following.load()
        if self._writer.is_overtaken(snapshot):
            # The other leader repairs what remains there.
            self._leadership.end_overtaken()
        else:
            make_writable(self._store, self._folder, snapshot)
            self._take(snapshot)
        self._writer.start_behind(snapshot.version)
        self._writer.end_reload(snapshot.version)
        return self.state

    def _take(self, snapshot: Snapshot) -> None:
        """Take over the snapshot as the leader of the table."""
        self._following.forget()
        for part in (self.cleanup, self.producers, self.transactions):
            part.take(snapshot)
