"""Mending a partition's table that no broker would open, or that has lost a data file.

Guards two promises. No record that can still be read is lost: what the table is to hold is put together from the log as
far as it can be followed, what later versions say, and every data file in the folder (repair/plan.py). And no history
is rewritten: what is wrong is undone by a new version, what cannot be read is moved to the quarantine, never deleted.
Offsets of which nothing is left are given up by name (`bus/lost/...`), and every step is reported.

Three ways lead to the repaired table. Where the log can be followed to its end, or only a torn last version is in the
way, one more version is enough. Where a version is whole but harmful, a later one undoes it, with a checkpoint, so that
no opening reads what it did. Where versions are lost, the log begins again with a checkpoint.

Each repair is rehearsed first, on a store whose changes stay in memory, and what came out is opened as a broker opens
it, and verified. One that does not stand this is not executed: then the log begins again with what can be followed of
it, or with the data files alone.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa

from bus.errors import StorageDamaged, StorageFault, count_of
from bus.model import TopicPartition
from bus.records.log_schema import INTERNAL_VALUE_TYPES, is_same_schema, log_schema
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, encode_hint, read_hint, summarize_checkpoint
from bus.storage_delta.log.listing import (
    BOUNDARY,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    LogListing,
    checkpoint_name,
    list_table,
    partition_folder,
    read_boundary,
    remove_boundary,
    version_name,
)
from bus.storage_delta.log.recovery import recover, remove_leftovers
from bus.storage_delta.log.table_metadata import earlier_type
from bus.storage_delta.log.txns import HIGH_WATERMARK_APP, LEADER_EPOCH_APP, Txn
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.repair.files import Action, FoundFile, encode_checkpoint, encode_repair
from bus.storage_delta.repair.history import BeyondRepair, History, HistoryReader, Trouble
from bus.storage_delta.repair.metadata_mending import METADATA, mend_metadata
from bus.storage_delta.repair.plan import Planner, Quarantine, RepairPlan, RepairReport, RepairStep, Steps
from bus.storage_delta.stores.rehearsal import RehearsalStore
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, ObjectStore
from bus.storage_delta.verify.log_verification import Breach
from bus.storage_delta.verify.verification import verify_partition


def repair_partition(
    store: ObjectStore, partition: TopicPartition, *, topic_id: str, now_ms: int, is_rehearsal: bool
) -> RepairReport:
    """Mend the partition, or say what would be done. No other process may write to the root meanwhile.

    Raises `StorageFault` if the store fails; to run it again then is safe.
    """
    rehearsed: list[_Rehearsed] = []
    for way in _Way:
        rehearsed.append(_rehearse_without_damage(store, partition, topic_id, now_ms, way))
        if rehearsed[-1].is_sound:
            break
    chosen = next((one for one in rehearsed if one.is_sound), None)
    if chosen is None:
        before = frozenset(map(str, _breaches(store, partition, topic_id)))
        chosen = next((one for one in rehearsed if one.error is None and one.breaches <= before), None)
    if chosen is None:
        first = rehearsed[0]
        reason = first.error or f"the table would not keep its promises afterwards: {min(first.breaches)}"
        return RepairReport(partition, is_rehearsal, (), f"{reason}; nothing was changed")
    if is_rehearsal:
        return RepairReport(partition, is_rehearsal, chosen.steps)
    repair = _Repair(store, partition, topic_id, now_ms)
    error: str | None = None
    try:
        repair.run(chosen.way, chosen.omitted)
    except StorageDamaged as damage:
        error = str(damage)
    return RepairReport(partition, is_rehearsal, repair.steps.taken, error)


class _Way(Enum):
    """How much of the log a repair goes by, the most first."""

    AS_FOUND = "what is there, as far as it can be followed, and one more version"
    NEW_BEGINNING = "a new beginning with what can be followed"
    BY_CONTENT = "a new beginning with the data files"


@dataclass(frozen=True, slots=True)
class _Omitted:
    """Parts of the log that a repair ignores. `checkpoints`: those of these versions, because they cannot be read or
    contradict the versions. `is_history_torn`: a version that only time travel reads is missing or torn."""

    checkpoints: frozenset[int] = frozenset()
    is_history_torn: bool = False


@dataclass(frozen=True, slots=True)
class _Rehearsed:
    way: _Way
    omitted: _Omitted
    steps: Sequence[RepairStep]
    error: str | None
    breaches: frozenset[str]

    @property
    def is_sound(self) -> bool:
        return self.error is None and not self.breaches


def _rehearse_without_damage(
    store: ObjectStore, partition: TopicPartition, topic_id: str, now_ms: int, way: _Way
) -> _Rehearsed:
    """Damage that only time travel meets costs nothing but itself: as long as the verification finds more of it, the
    same way is tried without."""
    omitted = _Omitted()
    while True:
        rehearsal = RehearsalStore(store)
        repair = _Repair(rehearsal, partition, topic_id, now_ms)
        try:
            repair.run(way, omitted)
        except StorageDamaged as damage:
            return _Rehearsed(way, omitted, repair.steps.taken, str(damage), frozenset())
        # If the table itself is as good as it can be, a repair does not correct the claims of another engine's version.
        found = _breaches(rehearsal, partition, topic_id, of_ours=not repair.steps.taken)
        more = _Omitted(
            omitted.checkpoints | {one.version for one in found if one.version is not None and one.is_of_checkpoint},
            omitted.is_history_torn or any(one.is_of_history for one in found),
        )
        if more == omitted:
            return _Rehearsed(way, omitted, repair.steps.taken, None, frozenset(map(str, found)))
        omitted = more


def _breaches(
    store: ObjectStore, partition: TopicPartition, topic_id: str, *, of_ours: bool = False
) -> Sequence[Breach]:
    """Those of the log; if it keeps its promises, those of the data files, which take longer. `of_ours`: without those
    of versions that another engine wrote."""
    found = verify_partition(store, partition, topic_id=topic_id, stops_at_log=True).breaches
    return [one for one in found if not (of_ours and _is_foreign(store, partition, one.version))]


def _is_foreign(store: ObjectStore, partition: TopicPartition, version: int | None) -> bool:
    if version is None:
        return False
    try:
        data = store.get(f"{partition_folder(partition)}/{LOG_FOLDER}/{version_name(version)}")
        commit = decode_commit(version, data)
        return not commit.is_ours and commit.is_signed
    except (MalformedCommit, KeyNotFound):
        return False


class _Repair:
    """One partition's, from the first look to a table that opens."""

    def __init__(self, store: ObjectStore, partition: TopicPartition, topic_id: str, now_ms: int) -> None:
        self.steps = Steps()
        self._store = store
        self._partition = partition
        self._topic_id = topic_id
        self._now_ms = now_ms
        self._folder = partition_folder(partition)
        self._log_folder = f"{self._folder}/{LOG_FOLDER}"
        self._schema = log_schema(INTERNAL_VALUE_TYPES.get(partition.topic))
        self._reader = DataReader(store, self._folder, self._schema, ReadCache())
        self._quarantine = Quarantine(store, partition)

    def run(self, way: _Way, omitted: _Omitted) -> None:
        """Raises `StorageDamaged` if the table would not open afterwards."""
        quarantine = self._quarantine.folder
        for folder in (self._log_folder, quarantine, f"{quarantine}/{LOG_FOLDER}"):
            remove_leftovers(self._store, folder)
        listing = list_table(self._store, self._folder)
        for version in sorted(omitted.checkpoints & listing.checkpoints.keys()):
            why = "a checkpoint that cannot be read, or does not say what the versions say"
            self._take_out(f"{LOG_FOLDER}/{checkpoint_name(version)}", why)
        kept = {version: size for version, size in listing.checkpoints.items() if version not in omitted.checkpoints}
        listing = replace(listing, checkpoints=kept)
        log = HistoryReader(self._store, self._folder, self._reader, self._schema, listing)
        history = log.follow()
        earlier = self._earlier_schema(history)
        if earlier is not None:
            self._schema = earlier
            self._reader = DataReader(self._store, self._folder, self._schema, ReadCache())
            log = HistoryReader(self._store, self._folder, self._reader, self._schema, listing)
            history = log.follow()
        if way is _Way.BY_CONTENT:
            history = log.gather(history.problem)
        self._check_known(history)
        planner = Planner(
            self._partition,
            self._topic_id,
            log=log,
            reader=self._reader,
            schema=self._schema,
            listing=listing,
            now_ms=self._now_ms,
        )
        plan = planner.plan(history)
        self._tell(history, plan)
        has_checkpoint = self._has_checkpoint(log, listing)
        self._put_back(plan)
        if way is not _Way.AS_FOUND:
            version, has_checkpoint = self._begin_again(history, plan, listing), True
        elif history.problem is None:
            version = self._add_version(history, plan, history.version + 1)
        elif history.problem.trouble is Trouble.HARMFUL and _is_whole(log, listing, history):
            version, has_checkpoint = self._undo(history, plan, log, listing), True
        elif history.version >= 0 and max(listing.versions) <= history.problem.version:
            version = self._replace_torn(history, plan, history.problem.version)
        else:
            version, has_checkpoint = self._begin_again(history, plan, listing), True
        self._set_aside_unreachable(history, log, listing, is_torn=omitted.is_history_torn)
        for name in log.broken_checkpoints:
            self._take_out(f"{LOG_FOLDER}/{name}", "a checkpoint that cannot be read")
        for path in [*(bad.path for bad in plan.bad if bad.is_there), *plan.unusable]:
            self._take_out(path, "a data file that cannot be used")
        live = {found.file.path for found in plan.table.files}
        for path in sorted({found.source for found in plan.table.files if found.source} - live):
            self._take_out(path, "a data file whose name is another one's")
        if not has_checkpoint:
            self._write_checkpoint(version, history.base, plan)
        self._mend_boundary(version)
        self._open()
        if self._partition == METADATA:
            mend_metadata(self._store, self.steps, cluster_id=self._topic_id, now_ms=self._now_ms)

    def _earlier_schema(self, history: History) -> pa.Schema | None:
        """Return the schema of an internal topic that an earlier version of the bus wrote; opening adds the newer
        fields."""
        newest, metadata = INTERNAL_VALUE_TYPES.get(self._partition.topic), history.metadata
        if newest is None or metadata is None:
            return None
        earlier = earlier_type(metadata.schema_string, newest)
        return None if earlier is None else log_schema(earlier)

    def _check_known(self, history: History) -> None:
        metadata = history.metadata
        is_internal = self._partition.topic in INTERNAL_VALUE_TYPES  # one of an earlier bus has fewer fields
        if is_internal and metadata is not None and not is_same_schema(metadata.schema_string, self._schema):
            raise BeyondRepair(f"{self._folder}: expected the columns of the log, found {metadata.schema_string}")

    def _has_checkpoint(self, log: HistoryReader, listing: LogListing) -> bool:
        """True if the checkpoint that `_last_checkpoint` names is whole, or if there is no checkpoint to name."""
        try:
            hint = read_hint(self._store, self._log_folder)
            if hint is not None:
                summarize_checkpoint(self._store.get(f"{self._log_folder}/{checkpoint_name(hint.version)}"))
            elif LAST_CHECKPOINT in listing.others:
                raise MalformedCheckpoint("expected an object with a version, found none")
        except (MalformedCheckpoint, KeyNotFound) as error:
            self.steps.add(
                "find", f"{LOG_FOLDER}/{LAST_CHECKPOINT}", f"it names no checkpoint that can be read: {error}"
            )
            return False
        return not log.broken_checkpoints

    def _mend_boundary(self, version: int) -> None:
        """No leader commits at or below it: above the last version it would stop the table for good. Nobody who slept
        is about to commit, since no broker runs."""
        try:
            kept_from = read_boundary(self._store, self._folder, topic_id=self._topic_id)
        except StorageDamaged as damage:
            reason = str(damage)
        else:
            reason = f"it says that the versions below {kept_from} were dropped, and {version} is the last one"
            if kept_from <= version:
                return
        self.steps.add("drop", BOUNDARY, reason)
        remove_boundary(self._store, self._folder)

    # ------------------------------------------------------------------ telling

    def _tell(self, history: History, plan: RepairPlan) -> None:
        if history.problem is not None:
            name = f"{LOG_FOLDER}/{version_name(history.problem.version)}"
            self.steps.add("find", name, history.problem.message)
        for bad in plan.bad:
            self.steps.add("find", bad.path, bad.reason, (bad.base_offset, bad.next_offset))
        for path in plan.unnamed_end:
            detail = (
                "a whole data file behind the end of the log: the version that named it was lost, or an interrupted "
                "commit that was never acknowledged left it; its records are brought back"
            )
            self.steps.add("find", path, detail)
        for path in plan.unusable:
            detail = (
                f"a data file behind the end of the log that cannot be read: if a version named it that was lost, "
                f"acknowledged records from offset {int(path[:20])} on are lost; if not, an interrupted commit left it"
            )
            self.steps.add("find", path, detail)
        for first, past_last in plan.lost:
            detail = "no file has a record of these offsets that can be read"
            self.steps.add("give up", f"offsets {first} to {past_last - 1}", detail, (first, past_last))

    def _put_back(self, plan: RepairPlan) -> None:
        """Copies of data files under the names that are theirs."""
        for found in plan.table.files:
            if found.source:
                data = self._store.get(f"{self._folder}/{found.source}") if found.data is None else found.data()
                with contextlib.suppress(KeyExists):  # an interrupted repair has written it
                    self._store.write_unique(f"{self._folder}/{found.file.path}", data)
                offsets = (found.file.base_offset, found.file.next_offset)
                how = (
                    "which has its bytes" if found.data is None else "of which these records can be read, written anew"
                )
                self.steps.add("bring back", found.file.path, f"from {found.source}, {how}", offsets)

    def _tell_change(self, adds: Sequence[FoundFile], removes: Sequence[str]) -> None:
        for path in removes:
            self.steps.add("drop", path, "it is no file of the table any more")
        for found in [one for one in adds if not one.source]:
            offsets = (found.file.base_offset, found.file.next_offset)
            self.steps.add("bring back", found.file.path, f"{count_of(found.file.record_count, 'record')}", offsets)

    # ------------------------------------------------------------------ three ways

    def _add_version(self, history: History, plan: RepairPlan, version: int) -> int:
        """Commit the planned state as one more version, or nothing if the table has it; return the version of the table
        afterwards."""
        live = set(history.files)
        adds = [found for found in plan.table.files if found.body is None or found.file.path not in live]
        removes = sorted(live - {found.file.path for found in plan.table.files})
        is_progress_known = all(
            history.txns.get(app_id) == txn
            for app_id, txn in plan.table.txns.items()
            if app_id not in (HIGH_WATERMARK_APP, LEADER_EPOCH_APP)
        )
        if not adds and not removes and not plan.lost and is_progress_known:
            return history.version
        changed = {
            app_id: txn
            for app_id, txn in plan.table.txns.items()
            if app_id in (HIGH_WATERMARK_APP, LEADER_EPOCH_APP) or history.txns.get(app_id) != txn
        }
        self._tell_change(adds, removes)
        known = {*history.files, *history.removed}
        self._commit(version, plan, adds, removes, known=known, txns=changed, new_from=history.high_watermark)
        return version

    def _replace_torn(self, history: History, plan: RepairPlan, torn: int) -> int:
        """Replace the torn version by a whole one at once: without a version of this number, the data file in the
        folder would count as that of an interrupted commit."""
        name = f"{LOG_FOLDER}/{version_name(torn)}"
        kept = self._quarantine.keep(name)
        self.steps.add("quarantine", name, f"it cannot be read; moved to {kept}")
        version = self._add_version(history, plan, torn)
        if version != torn:
            self._quarantine.remove(name)
        return version

    def _undo(self, history: History, plan: RepairPlan, log: HistoryReader, listing: LogListing) -> int:
        assert history.problem is not None, f"{self._folder}: there is nothing to undo"
        version = max(listing.versions) + 1
        live, known = log.paths_after(history)
        planned = {found.file.path for found in plan.table.files}
        adds = [found for found in plan.table.files if found.body is None or found.file.path not in live]
        names = f"versions {history.problem.version} to {version - 1}"
        removes = sorted(live - planned)
        self.steps.add("undo", names, "they stay, but count no more")
        self._tell_change(adds, removes)
        said_again: list[Action] = [{"protocol": dict(plan.table.protocol)}, {"metaData": dict(plan.table.metadata)}]
        self._commit(
            version,
            plan,
            adds,
            removes,
            known=known,
            txns=plan.table.txns,
            others=said_again,
            undone_from=history.problem.version,
        )
        self._put_checkpoint(version, plan, removed=sorted((known & set(listing.data_files)) - planned))
        return version

    def _begin_again(self, history: History, plan: RepairPlan, listing: LogListing) -> int:
        version = max([-1, *listing.versions, *listing.checkpoints]) + 1
        said_again: list[Action] = [{"protocol": dict(plan.table.protocol)}, {"metaData": dict(plan.table.metadata)}]
        known = {*history.files, *history.removed}
        self._tell_change([found for found in plan.table.files if found.file.path not in history.files], [])
        self._commit(version, plan, plan.table.files, [], known=known, txns=plan.table.txns, others=said_again)
        self._put_checkpoint(version, plan, removed=[])
        self._take_out_versions_below(version, listing)
        return version

    # ------------------------------------------------------------------ writing

    def _commit(
        self,
        version: int,
        plan: RepairPlan,
        adds: Sequence[FoundFile],
        removes: Sequence[str],
        *,
        known: Collection[str],
        txns: Mapping[str, Txn],
        new_from: int = 0,
        others: Sequence[Action] = (),
        undone_from: int | None = None,
    ) -> None:
        data = encode_repair(
            adds,
            removes,
            known=known,
            new_from=new_from,
            txns=txns,
            others=others,
            undone_from=undone_from,
            leader_epoch=plan.leader_epoch,
            now_ms=self._now_ms,
            txn_id=str(uuid.uuid4()),
        )
        key = f"{self._log_folder}/{version_name(version)}"
        # No other process may write here; what has the version's name, if anything has, is torn and was copied.
        self._store.put(key, data)
        detail = (
            f"the table has {count_of(len(plan.table.files), 'file')}, and its high watermark is {plan.high_watermark}"
        )
        self.steps.add("commit", f"{LOG_FOLDER}/{version_name(version)}", detail)

    def _put_checkpoint(self, version: int, plan: RepairPlan, *, removed: Sequence[str]) -> None:
        data = encode_checkpoint(plan.table, removed=removed, now_ms=self._now_ms)
        summary = summarize_checkpoint(data)
        name = checkpoint_name(version)
        self._store.put(f"{self._log_folder}/{name}", data)
        self._store.put(
            f"{self._log_folder}/{LAST_CHECKPOINT}",
            encode_hint(version, action_count=summary.action_count, data=data),
        )
        self.steps.add("checkpoint", f"{LOG_FOLDER}/{name}", "written, and named by _last_checkpoint")

    def _write_checkpoint(self, version: int, base: int, plan: RepairPlan) -> None:
        paths = [found.file.path for found in plan.table.files]
        try:
            checkpoints.write_checkpoint(self._store, self._folder, version=version, base_version=base, paths=paths)
        except StorageFault as fault:
            # a rehearsal writes to memory, so the log itself is at fault, and another way may succeed
            if isinstance(self._store, RehearsalStore):
                raise StorageDamaged(str(fault)) from fault
            raise
        name = f"{LOG_FOLDER}/{checkpoint_name(version)}"
        self.steps.add("checkpoint", name, "written, and named by _last_checkpoint")

    def _set_aside_unreachable(
        self, history: History, log: HistoryReader, listing: LogListing, *, is_torn: bool
    ) -> None:
        """Versions that readers cannot get past, since there is a gap behind them, or to, since nothing is before them.
        The log begins with version 0, or at the first checkpoint behind the last gap. `is_torn`: a version may be there
        and not be readable."""
        below = [version for version in listing.versions if version <= history.base]
        if is_torn:
            below = [version for version in below if log.is_readable(version)]
        if not below:
            return
        gap = max(set(range(below[0], history.base + 1)) - set(below), default=below[0] - 1)
        if gap < 0:
            return
        begin = min(version for version in listing.checkpoints if gap <= version <= history.base)
        self._take_out_versions_below(begin, listing)
        if begin == gap:
            self._take_out(f"{LOG_FOLDER}/{version_name(gap)}", "it cannot be read; its checkpoint stands for it")

    def _take_out_versions_below(self, end: int, listing: LogListing) -> None:
        for version in listing.versions:
            if version < end:
                self._take_out(f"{LOG_FOLDER}/{version_name(version)}", "versions before or behind it are lost")
        for version in listing.checkpoints:
            if version < end:
                self._take_out(f"{LOG_FOLDER}/{checkpoint_name(version)}", "of a log that cannot be followed")

    def _take_out(self, name: str, why: str) -> None:
        kept = self._quarantine.keep(name)
        if kept is not None:
            self._quarantine.remove(name)
            self.steps.add("quarantine", name, f"{why}; moved to {kept}")

    def _open(self) -> None:
        """Open the table the way a broker does."""
        reader = PartitionReader(self._store, self._folder, self._schema, ReadCache())
        snapshot = reader.load(topic_id=self._topic_id)
        if snapshot.findings.is_hint_wrong:
            self.steps.add("checkpoint", f"{LOG_FOLDER}/{LAST_CHECKPOINT}", "made to name the newest checkpoint")
        recover(self._store, self._folder, snapshot)


def _is_whole(log: HistoryReader, listing: LogListing, history: History) -> bool:
    """True if every version behind the history exists and can be read."""
    return all(log.is_readable(version) for version in range(history.version + 1, max(listing.versions) + 1))
