"""Does a partition's log keep its promises? A replay, version by version, that notes each breach.

Versions are contiguous and whole. Each commit follows the protocol (no two actions that reconcile with each other) and
the log: offsets dense, leader and producer epochs never go back, the high watermark told truly, rewriting keeps
offsets, retention takes the oldest. What a repair has undone is no breach any more, but a note. Each checkpoint equals
the replay, and `_last_checkpoint` points to one. Looks into no data file. Shares no code with the path that commits and
opens; prints and mends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from bus.errors import count_of
from bus.model import TopicPartition
from bus.records.log_schema import INTERNAL_VALUE_TYPES, LOG_SCHEMA, delta_schema_string
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.producer_verification import TAKEN_BACK, TransactionCheck
from bus.storage_delta.verify.replay import (
    COMPACTED_APP,
    HIGH_WATERMARK_APP,
    LAST_CHECKPOINT,
    LEADER_EPOCH_APP,
    LOG_FOLDER,
    LOG_START_APP,
    PRODUCER_APPS,
    TRANSACTION_APPS,
    Action,
    AddedFile,
    LogListing,
    ReplayedTable,
    Unreadable,
    checkpoint_file,
    decode_add,
    is_forgotten,
    load_checkpoint,
    load_last_checkpoint,
    load_version,
    parse_schema,
    version_file,
)

Finding = tuple[str, str, str]  # promise, expected, found
_APART = "changes of data and rewritings are apart"
_LOG_START = "the log start is true"


def check_log_start(
    table: ReplayedTable, actions: Sequence[Action], removed: Sequence[AddedFile], *, high_watermark: int
) -> Iterator[Finding]:
    """Check the log start that a version behind `table` sets, and its removal of `removed`: only whole files from the
    start of the log go, and the log start never goes back."""
    recorded = next((body["version"] for body in _bodies(actions, "txn") if body.get("appId") == LOG_START_APP), None)
    if recorded is None:
        return
    before = table.txns.get(LOG_START_APP, 0)
    if not before <= recorded <= high_watermark:
        yield _LOG_START, f"{LOG_START_APP} from {before} to {high_watermark}", str(recorded)
    gone = {file.path for file in removed}
    for file in table.files.values():
        if file.path in gone and file.last_offset >= recorded:
            yield (
                _LOG_START,
                f"{file.path} with offsets up to {file.last_offset} to stay",
                f"it removed below {recorded}",
            )
        if file.path not in gone and file.last_offset < recorded:
            yield _LOG_START, f"{file.path} with offsets up to {file.last_offset} to go", f"it live below {recorded}"


def check_apart(actions: Sequence[Action]) -> Iterator[Finding]:
    """Check a version of the bus: new records, removed records and rewrites are never in one version, so a reader of
    changes can ignore a rewrite and sees a removal as a removal."""
    adds, removes = ([bool(body.get("dataChange")) for body in _bodies(actions, kind)] for kind in ("add", "remove"))
    if any(adds) and removes:
        yield _APART, "no removal beside new records", f"{len(removes)}"
    if any(removes) and (adds or not all(removes)):
        yield (
            _APART,
            "nothing beside the removal of records",
            f"{count_of(len(adds), 'file')} added, {len(removes)} removed",
        )


def check_start(table: ReplayedTable) -> Iterator[tuple[str, Finding]]:
    """Check that the first live file, or the lack of any, agrees with the log start; the path at fault comes first, if
    there is one."""
    start = table.txns.get(LOG_START_APP, 0)
    first = table.files_by_offset[0] if table.files else None
    begins = table.high_watermark if first is None else first.base_offset
    # Another engine's file tells nothing of the records that key compaction took before its first.
    is_foreign_hole = first is not None and first.tag is None and begins <= table.compacted_to
    if begins > start and not is_foreign_hole and not table.is_lost(start, begins):
        path = "" if first is None else first.path
        yield path, ("offsets are dense", f"offset {start}, the log start", f"nothing below {begins}")


def check_kept(removed_in: Mapping[str, int], stored: Collection[str]) -> Iterator[tuple[str, int, Finding]]:
    """Data files that kept versions removed, each with its version, beside those that are there."""
    for path, version in sorted(removed_in.items()):
        if path not in stored:
            expected = f"a file that version {version - 1} has"
            yield path, version, ("kept versions can be read", expected, "none")


def check_named(removed: Collection[str], recorded: Collection[str], stored: Collection[str]) -> Iterator[Finding]:
    """Check that a checkpoint names the removed files that still exist, by comparing it with a replay: a file that it
    does not name counts as an orphan."""
    for path in sorted(set(removed) & set(stored) - set(recorded)):
        yield "checkpoints name the removed files that are there", f"a remove of {path}", "none"


def removed_paths(actions: Sequence[Action]) -> list[str]:
    return [unquote(str(body.get("path"))) for body in _bodies(actions, "remove")]


def _bodies(actions: Sequence[Action], kind: str) -> Iterator[Action]:
    yield from (action[kind] for action in actions if kind in action)


_ADD_FIELDS: Mapping[str, type] = {
    "path": str,
    "partitionValues": dict,
    "size": int,
    "modificationTime": int,
    "dataChange": bool,
    "stats": str,
}
_OUR_ENGINE = "delta-bus/"
_REPAIR = "REPAIR"
_CHECKPOINT_READABLE = "checkpoints are readable"
_CHECKPOINT_TRUE = "checkpoints equal a replay"
_WHOLE = "versions are whole"
# Protocols of a table that any engine may write to, and of one that only the bus may.
_OPEN, _MANAGED = (1, 2), (1, 7, ("appendOnly", "busManaged", "invariants"))
_CONTIGUOUS = "versions are contiguous"


class LogMoved(Exception):
    """A file of the log went while it was read: a broker cleans up what a checkpoint stands for. List it again."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One promise that is not kept. `version` is None where no single version is at fault."""

    partition: TopicPartition
    promise: str
    file: str  # relative to the partition's folder
    version: int | None
    expected: str
    found: str

    @property
    def is_of_checkpoint(self) -> bool:
        """True if another checkpoint, or the versions, say what this one should."""
        return self.promise in (_CHECKPOINT_READABLE, _CHECKPOINT_TRUE)

    @property
    def is_of_history(self) -> bool:
        """True if a version is missing or cannot be read."""
        return self.promise in (_WHOLE, _CONTIGUOUS)

    def __str__(self) -> str:
        at = f" (version {self.version})" if self.version is not None else ""
        return f"{self.partition}: {self.promise}: {self.file}{at}: expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class LogCheck:
    """Replays the log version by version and notes each breach."""

    store: ObjectStore
    folder: str
    partition: TopicPartition
    topic_id: str | None
    listing: LogListing
    table: ReplayedTable = field(default_factory=ReplayedTable)
    breaches: list[Breach] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_judged: bool = False  # the table is that of the last version
    high_watermark: int = 0
    leader_epoch: int = -1
    txn_ids: dict[str, int] = field(default_factory=dict)
    removed_in: dict[str, int] = field(default_factory=dict)  # path -> the version that removed it
    transactions: TransactionCheck = field(default_factory=TransactionCheck)

    def check(self) -> None:
        versions = sorted(self.listing.versions)
        if not versions and not self.listing.checkpoints:
            self._breach("a table is there", LOG_FOLDER, None, "a Delta table", "no version")
            return
        self._start(versions)
        for version in self._contiguous(versions):
            known = len(self.breaches)
            is_whole = self._check_version(version)
            if len(self.breaches) > known and self._pass_repaired(version, known):
                continue
            if not is_whole:
                return
            if version in self.listing.checkpoints:
                self._check_checkpoint(version)
        self._check_last_checkpoint()
        for path, version, finding in check_kept(self.removed_in, self.listing.data_files):
            self._breach(finding[0], path, version, *finding[1:])

    def _pass_repaired(self, version: int, known: int) -> bool:
        """True if a repair has undone `version`. The replay then continues with the checkpoint of the repair, and
        breaches beyond the first `known` ones become notes."""
        repaired = self._find_repair(version)
        if repaired is None:
            return False
        found = self.breaches[known:]
        del self.breaches[known:]
        self.notes += [f"undone by the repair in version {repaired}: {breach}" for breach in found]
        self.removed_in = {path: removed for path, removed in self.removed_in.items() if removed < version}
        actions = self._load_checkpoint(repaired)
        if actions is not None:
            self.table = ReplayedTable()
            self._adopt(repaired, actions)
        return True

    def _find_repair(self, version: int) -> int | None:
        for later in sorted(self.listing.checkpoints):
            if later <= version or later not in self.listing.versions:
                continue
            try:
                info = _info_of(load_version(self.store, self.folder, later))
            except (Unreadable, KeyNotFound):
                continue
            undone = (info.get("operationParameters") or {}).get("undoneFrom")
            if _is_repair(info) and undone is not None and int(undone) <= version:
                return later
        return None

    def _start(self, versions: Sequence[int]) -> None:
        """Begin with a checkpoint if version 0 is deleted."""
        first = versions[0] if versions else None
        if first == 0:
            return
        usable = [version for version in self.listing.checkpoints if first is None or version >= first - 1]
        for version in usable:
            actions = self._load_checkpoint(version)
            if actions is not None:
                self._adopt(version, actions)
                return
        gone = "versions 0 up to there" if first is None else f"versions 0 to {first - 1}"
        self._breach(_CONTIGUOUS, LOG_FOLDER, 0, f"{gone}, or a checkpoint for them", "neither")

    def _adopt(self, version: int, actions: Sequence[Action]) -> None:
        try:
            self.table.apply(version, actions, is_checkpoint=True)
        except Unreadable as error:
            self._breach(_CHECKPOINT_TRUE, checkpoint_file(version), version, "whole actions", str(error))
            return
        self.high_watermark = self.table.high_watermark
        self.leader_epoch = self.table.leader_epoch
        self.transactions.begin(self.high_watermark)
        self._check_table(version, checkpoint_file(version))
        self.is_judged = version == max([*self.listing.versions, version])

    def _contiguous(self, versions: Sequence[int]) -> Iterator[int]:
        """The versions to replay, up to the first that is missing: nothing behind it can be judged."""
        if not versions or (self.table.version < 0 and versions[0] != 0):
            return
        while (version := self.table.version + 1) <= versions[-1]:
            if version not in self.listing.versions:
                file = version_file(version)
                self._breach(_CONTIGUOUS, file, version, f"versions up to {versions[-1]}", "no such file")
                self.is_judged = False
                return
            yield version
            self.is_judged = version == versions[-1]

    def _check_version(self, version: int) -> bool:
        """False if what follows cannot be judged."""
        self.is_judged = False
        try:
            actions = load_version(self.store, self.folder, version)
            added = [decode_add(action["add"], version) for action in actions if "add" in action]
            for breach in _check_actions(actions):
                self._breach("commits follow the protocol", version_file(version), version, *breach)
            self._check_info(version, actions)
            self._check_offsets(version, actions, added)
            self._check_txns(version, actions)
            self._check_transactions(version, actions, added)
            self.table.apply(version, actions)
            if not _is_repair(_info_of(actions)):  # the files that a repair removes were lost before
                self.removed_in.update(dict.fromkeys(removed_paths(actions), version))
            for entry in added:
                self.removed_in.pop(entry.path, None)
        except Unreadable as error:
            self._breach(_WHOLE, version_file(version), version, *_split(str(error)))
            return False
        except KeyNotFound as error:
            raise LogMoved(str(error)) from None
        if version == 0 or any("metaData" in action or "protocol" in action for action in actions):
            self._check_table(version, version_file(version))
        return True

    def _check_info(self, version: int, actions: Sequence[Action]) -> None:
        file = version_file(version)
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if len(infos) != 1:
            self._breach("commits follow the protocol", file, version, "one commitInfo", str(len(infos)))
            return
        info = infos[0]
        if str(info.get("engineInfo", "")).startswith(_OUR_ENGINE) and info.get("actionCount") != len(actions):
            expected = f"{info.get('actionCount')} actions"
            self._breach(_WHOLE, file, version, expected, str(len(actions)))
        txn_id = info.get("txnId")
        if txn_id is not None:
            if txn_id in self.txn_ids:
                found = f"{txn_id} in version {self.txn_ids[txn_id]}, too"
                self._breach("commits are there once", file, version, "a txnId of its own", found)
            self.txn_ids[txn_id] = version
        epoch = info.get("leaderEpoch")
        if epoch is not None:
            if epoch < self.leader_epoch:
                expected = f"a leader epoch of at least {self.leader_epoch}"
                self._breach("leader epochs never go back", file, version, expected, str(epoch))
            self.leader_epoch = max(self.leader_epoch, epoch)

    def _check_offsets(self, version: int, actions: Sequence[Action], added: Sequence[AddedFile]) -> None:
        file = version_file(version)
        if _is_repair(_info_of(actions)):
            # It names what is lost and adds what exists. Whether anything else is missing shows at the end of the
            # replay.
            recorded = [action["txn"] for action in actions if "txn" in action]
            ends = [txn["version"] for txn in recorded if txn.get("appId") == HIGH_WATERMARK_APP]
            self.high_watermark = max([self.high_watermark, *ends])
            return
        bodies = {
            id(entry): action["add"] for entry, action in zip(added, (a for a in actions if "add" in a), strict=True)
        }
        appended = [entry for entry in added if bodies[id(entry)].get("dataChange")]
        rewritten = [entry for entry in added if not bodies[id(entry)].get("dataChange")]
        is_ours = str(_info_of(actions).get("engineInfo", "")).startswith(_OUR_ENGINE)
        author = "" if is_ours else _author_of(_info_of(actions))
        # Delta takes a file that is added again for itself, with statistics that were computed again.
        again = [] if is_ours else [entry for entry in rewritten if entry.path in self.table.files]
        for entry in added:
            if entry.path in self.table.files and entry not in again:
                self._breach("commits follow the protocol", file, version, "a new path", f"{entry.path}, already live")
        for entry in sorted(appended, key=lambda one: one.first_row):
            if entry.first_row != self.high_watermark:
                expected = f"{entry.path} to begin at offset {self.high_watermark}"
                self._breach("offsets are dense", file, version, expected, f"{entry.first_row}{author}")
            self.high_watermark = max(self.high_watermark, entry.last_row + 1)
        removed = self._removed(version, actions)
        gone_paths = {entry.path for entry in removed}
        findings = [*check_log_start(self.table, actions, removed, high_watermark=self.high_watermark)]
        if is_ours:
            findings += check_apart(actions)
        for finding in findings:
            self._breach(finding[0], file, version, finding[1], finding[2] + author)
        before = [*removed, *(self.table.files[entry.path] for entry in again if entry.path not in gone_paths)]
        if rewritten and not _keeps_offsets(before, rewritten, self.table):
            expected = f"offsets {_text(_ranges(before))}"
            self._breach("rewriting keeps offsets", file, version, expected, _text(_ranges(rewritten)) + author)
        elif removed and not added:
            kept = [entry for path, entry in self.table.files.items() if path not in {gone.path for gone in removed}]
            lowest = min((entry.base_offset for entry in kept), default=self.high_watermark)
            for gone in removed:
                if gone.base_offset >= lowest:
                    expected = f"only offsets below {lowest} to go"
                    found = f"{gone.path} removed{author}"
                    self._breach("retention takes the oldest", file, version, expected, found)

    def _removed(self, version: int, actions: Sequence[Action]) -> list[AddedFile]:
        gone = []
        for action in actions:
            if (body := action.get("remove")) is not None:
                path = unquote(str(body.get("path")))
                entry = self.table.files.get(path)
                if entry is None:
                    file = version_file(version)
                    self._breach("commits follow the protocol", file, version, "a live file to go", f"{path}, not live")
                else:
                    gone.append(entry)
        return gone

    def _check_txns(self, version: int, actions: Sequence[Action]) -> None:
        file = version_file(version)
        txns = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        recorded = txns.get(HIGH_WATERMARK_APP)
        if recorded is not None and recorded != self.high_watermark:
            self._breach("the high watermark is true", file, version, str(self.high_watermark), str(recorded))
        recorded = txns.get(LEADER_EPOCH_APP)
        if recorded is not None and recorded != self.leader_epoch:
            self._breach(
                "leader epochs never go back", file, version, f"leader epoch {self.leader_epoch}", str(recorded)
            )
        compacted_to = txns.get(COMPACTED_APP, self.table.compacted_to)
        if not self.table.compacted_to <= compacted_to <= self.high_watermark:
            expected = f"{COMPACTED_APP} from {self.table.compacted_to} to {self.high_watermark}"
            self._breach("compaction never goes back", file, version, expected, str(compacted_to))
        for app_id, done in txns.items():
            before = self.table.txns.get(app_id, 0)
            is_producer = app_id.removeprefix(PRODUCER_APPS).isdigit()
            if is_producer and done >> 32 < before >> 32:
                expected = f"{app_id} at a producer epoch of at least {before >> 32}"
                self._breach("producer epochs never go back", file, version, expected, str(done >> 32))

    def _check_transactions(self, version: int, actions: Sequence[Action], added: Sequence[AddedFile]) -> None:
        if _is_repair(_info_of(actions)):  # it says again what versions said that it has undone
            self.transactions.begin(self.high_watermark)
            return
        is_append = all(action["add"].get("dataChange") for action in actions if "add" in action)
        for finding in self.transactions.add_version(version, actions, self.table, added if is_append else ()):
            self._breach(finding[0], version_file(version), version, *finding[1:])

    def _check_table(self, version: int, file: str) -> None:
        protocol, metadata = self.table.protocol, self.table.metadata
        if protocol is None or metadata is None:
            found = "no protocol" if protocol is None else "no metaData"
            self._breach("commits follow the protocol", file, version, "a protocol and a metaData action", found)
            return
        found_levels = _levels(protocol)
        if found_levels not in (_OPEN, _MANAGED):
            expected = f"protocol {_OPEN} or {_MANAGED}"
            self._breach("every engine can read it", file, version, expected, str(found_levels))
        if metadata.get("partitionColumns"):
            self._breach("the table has the log's columns", file, version, "no partition columns", "some")
        is_typed = self.partition.topic in INTERNAL_VALUE_TYPES
        for expected, found in _schema_differences(str(metadata.get("schemaString")), is_typed=is_typed):
            self._breach("the table has the log's columns", file, version, expected, found)
        wanted = {"bus.topic": self.partition.topic, "bus.partition": str(self.partition.partition)}
        if self.topic_id is not None:
            wanted["bus.topic_id"] = self.topic_id
        for name, value in wanted.items():
            if (actual := self.table.configuration.get(name)) != value:
                self._breach("the table is this partition's", file, version, f"{name}={value}", str(actual))

    def _check_checkpoint(self, version: int) -> None:
        actions = self._load_checkpoint(version)
        if actions is None:
            return
        recorded = ReplayedTable()
        try:
            recorded.apply(version, actions, is_checkpoint=True)
        except Unreadable as error:
            self._breach(_CHECKPOINT_TRUE, checkpoint_file(version), version, "whole actions", str(error))
            return
        for promise, expected, found in check_named(self.table.removed, recorded.removed, self.listing.data_files):
            self._breach(promise, checkpoint_file(version), version, expected, found)
        for expected, found in _table_differences(self.table, recorded):
            self._breach(_CHECKPOINT_TRUE, checkpoint_file(version), version, expected, found)

    def _load_checkpoint(self, version: int) -> list[Action] | None:
        try:
            return load_checkpoint(self.store, self.folder, version)
        except Unreadable as error:
            self._breach(_CHECKPOINT_READABLE, checkpoint_file(version), version, *_split(str(error)))
        except KeyNotFound as error:
            raise LogMoved(str(error)) from None
        return None

    def _check_last_checkpoint(self) -> None:
        file = f"{LOG_FOLDER}/{LAST_CHECKPOINT}"
        try:
            version = load_last_checkpoint(self.store, self.folder)
            if version is not None:
                self.store.size(f"{self.folder}/{checkpoint_file(version)}")
        except Unreadable as error:
            self._breach("_last_checkpoint points to a checkpoint", file, None, *_split(str(error)))
        except KeyNotFound:
            expected = f"a checkpoint of version {version}"
            self._breach("_last_checkpoint points to a checkpoint", file, version, expected, "none")

    def _breach(self, promise: str, file: str, version: int | None, expected: str, found: str) -> None:
        self.breaches.append(Breach(self.partition, promise, file, version, expected, found))


def _info_of(actions: Sequence[Action]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _author_of(info: Mapping[str, Any]) -> str:
    """Name the other engine that wrote a version, as its breach says it."""
    if not info:
        return ""
    author = f"{info.get('operation', 'a change')} of {info.get('engineInfo', 'another engine')}"
    return f", by {author}: only the broker changes records, and `bus log repair` undoes it"


def _is_repair(info: Mapping[str, Any]) -> bool:
    return info.get("operation") == _REPAIR and str(info.get("engineInfo", "")).startswith(_OUR_ENGINE)


def _check_actions(actions: Sequence[Action]) -> Iterator[tuple[str, str]]:
    """Yield the violations of the protocol within one commit, as (expected, found)."""
    keys: list[tuple[str, str]] = []
    for action in actions:
        match action:
            case {"add": body} | {"remove": body}:
                keys.append(("file", str(body.get("path"))))
            case {"txn": body}:
                keys.append(("txn", str(body.get("appId"))))
            case {"metaData": _} | {"protocol": _}:
                keys.append(("action", next(iter(action))))
        if (body := action.get("add")) is not None:
            for name, kind in _ADD_FIELDS.items():
                if not isinstance(body.get(name), kind):
                    yield f"add.{name} as {kind.__name__}", repr(body.get(name))
            if not _is_plain_path(str(body.get("path"))):
                yield "the name of a file in the partition's folder", repr(body.get("path"))
            if body.get("deletionVector") is not None:
                yield "no deletion vector", "one"
    for (subject, name), count in sorted(Counter(keys).items()):
        if count > 1:
            yield f"at most one action for the {subject} {name}", str(count)


def _is_plain_path(path: str) -> bool:
    return bool(path) and "/" not in path and not path.startswith((".", "_"))


def _keeps_offsets(removed: Sequence[AddedFile], added: Sequence[AddedFile], table: ReplayedTable) -> bool:
    """Files that the bus wrote say which offsets they stand for. Those of another engine only have their rows, and
    where key compaction took some, these are fewer. Offsets that were given up may be in or out."""
    before, after = _ranges(removed), _ranges(added)
    log_start = table.txns.get(LOG_START_APP, 0)  # offsets below it are deleted, and their files may be left out
    if after == [(max(first, log_start), last) for first, last in before if last >= log_start]:
        return True
    if before == after or _with_lost(before, table) == _with_lost(after, table):
        return True
    if min(file.base_offset for file in (*removed, *added)) >= table.compacted_to:
        return False
    if any(file.tag is None for file in added):
        return _lie_within(after, before) and _count(removed) == _count(added)
    return any(file.tag is None for file in removed) and _lie_within(before, after)


def _lie_within(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    return all(any(low <= first and last <= high for low, high in others) for first, last in ranges)


def _count(files: Iterable[AddedFile]) -> int:
    return sum(file.record_count for file in files)


def _with_lost(ranges: Sequence[tuple[int, int]], table: ReplayedTable) -> list[tuple[int, int]]:
    lost = [(first, following - 1) for first, following in table.lost_ranges]
    return _merged([*ranges, *lost], may_overlap=True)


def _ranges(files: Iterable[AddedFile]) -> list[tuple[int, int]]:
    """Offsets that the files cover, neighbours merged."""
    return _merged([(file.base_offset, file.last_offset) for file in files])


def _merged(ranges: Iterable[tuple[int, int]], *, may_overlap: bool = False) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and (first == merged[-1][1] + 1 or (may_overlap and first <= merged[-1][1])):
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _text(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first} to {last}" for first, last in ranges) or "none"


def _schema_differences(schema_string: str, *, is_typed: bool) -> Iterator[tuple[str, str]]:
    """Columns by name, order and type, and nothing beside them; a typed `value` may be any struct."""
    try:
        schema = parse_schema(schema_string)
        fields = {column["name"]: column for column in schema["fields"]}
    except (ValueError, KeyError, TypeError) as error:
        yield "a schema as JSON", f"{type(error).__name__}: {error}"
        return
    wanted = parse_schema(delta_schema_string(LOG_SCHEMA))
    expected = {column["name"]: column for column in wanted["fields"]}
    if list(fields) != list(expected) or len(fields) != len(schema["fields"]):
        yield f"columns {', '.join(expected)}", ", ".join(fields)
        return
    if schema.keys() != wanted.keys() or schema["type"] != wanted["type"]:
        yield f"a {wanted['type']} of fields", str({key: value for key, value in schema.items() if key != "fields"})
    for name, column in expected.items():
        found = fields[name]
        if name == "value" and is_typed and isinstance(found.get("type"), dict):
            found = {**found, "type": column["type"]}
        if found != column:
            yield f"column {name} as {column}", str(found)


def _levels(protocol: Mapping[str, Any]) -> tuple[Any, ...]:
    """Reader version, writer version, and the names of features if there are any."""
    features = (protocol.get(name) for name in ("readerFeatures", "writerFeatures"))
    named = (sorted(map(str, each)) for each in features if each is not None)
    return protocol.get("minReaderVersion"), protocol.get("minWriterVersion"), *map(tuple, named)


def _entry(file: AddedFile) -> tuple[object, ...]:
    return file.size_bytes, file.stats, file.tag, file.sums


def _table_differences(replayed: ReplayedTable, recorded: ReplayedTable) -> Iterator[tuple[str, str]]:
    for path in sorted(replayed.files.keys() | recorded.files.keys()):
        ours, theirs = replayed.files.get(path), recorded.files.get(path)
        if ours is None or theirs is None:
            yield (f"{path}, which is live", "no entry") if theirs is None else (f"no entry for {path}", "one")
        elif _entry(ours) != _entry(theirs):
            yield f"{path} with the size, statistics and tags of the log", "others"
    for app_id in sorted(replayed.txns.keys() | recorded.txns.keys()):
        is_taken_back = app_id.startswith(TRANSACTION_APPS) and replayed.txns.get(app_id) == TAKEN_BACK
        may_be_left_out = app_id not in recorded.txns and (is_taken_back or is_forgotten(app_id, recorded.txns))
        if replayed.txns.get(app_id) != recorded.txns.get(app_id) and not may_be_left_out:
            yield f"txn {app_id} at {replayed.txns.get(app_id)}", str(recorded.txns.get(app_id))
    for name in ("id", "schemaString", "configuration"):
        if (replayed.metadata or {}).get(name) != (recorded.metadata or {}).get(name):
            yield f"the log's metaData.{name}", "another"
    levels, found = _levels(replayed.protocol or {}), _levels(recorded.protocol or {})
    if levels != found:
        yield f"the log's protocol, {levels}", str(found)


def _split(message: str) -> tuple[str, str]:
    """`expected X, found Y` as (X, Y), so that every breach reads the same."""
    expected, _, found = message.removeprefix("expected ").partition(", found")
    return expected, found.lstrip(": ") or message
