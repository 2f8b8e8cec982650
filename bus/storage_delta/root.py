"""A bus root: the marker that makes a folder one, the lock that gives it one broker, and the tables below it.

    <root>/bus-root.json                                   the marker: format version, cluster id
    <root>/.bus-lock                                       shared by brokers; a repair has it alone
    <root>/cluster/broker-<id>.lock                        the process that is this broker
    <root>/cluster/broker-<id>.lease                       what it writes all the time, to show that it can
    <root>/topics/<topic>/<partition>/_delta_log/...       one table per partition
    <root>/private/users/_delta_log/...                    who may log in; the folder is the owner's alone

Guards two promises: nothing is created in, or removed from, a folder that is no bus root, and files of a topic id are
never removed for another one. The locks keep one broker from being started twice, and a repair from running beside a
broker; that a partition's log has one writer does not rest on them but on put-if-absent. Before format version 2 one
broker had `.bus-lock` alone; a program of that time refuses the newer marker.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from bus.errors import RootInUse, RootNotUsable, StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, ROOT_MARKER, TopicPartition
from bus.platform.system_clock import SystemClock
from bus.ports import Clock, TableFiles, Volume
from bus.records.json_text import parse_json
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE, INTERNAL_VALUE_TYPES, USERS_VALUE_TYPE, log_schema
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint, load_proved, read_hint
from bus.storage_delta.log.listing import (
    LOG_FOLDER,
    TOPICS_FOLDER,
    list_log,
    list_partitions,
    partition_folder,
    version_name,
)
from bus.storage_delta.log.recovery import LEFTOVER_AGE_MIN_MS
from bus.storage_delta.log.table_metadata import add_new_fields, encode_create, find_value_type
from bus.storage_delta.partition_reader import FollowingReader, PartitionReader
from bus.storage_delta.staging import STAGED_CACHE_BYTES, StagedCache
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import (
    PRIVATE_FOLDER,
    Entry,
    KeyExists,
    KeyLocked,
    KeyNotFound,
    Lock,
    ObjectStore,
    Stamp,
    is_temporary_name,
)
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.typed_log import DeltaKeyedRows, DeltaTypedLog

_log = logging.getLogger(__name__)

LOCK = ".bus-lock"
FORMAT_VERSION = 2
_CLUSTER = "cluster"
_BROKER_LOCK = re.compile(r"broker-\d+\.lock")
_UPGRADING = ", which is preparing the root"
_UPGRADE_WAITS = 200
_UPGRADE_WAIT_S = 0.05
_METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_USERS_FOLDER = f"{PRIVATE_FOLDER}/users"
_USERS = TopicPartition("__users", 0)  # the name that its table has for itself; no topic of this name is made
# A file system of its own has this at its top.
_IGNORED_IN_EMPTY_ROOT = frozenset({"lost+found", LOCK})


@dataclass(frozen=True, slots=True)
class _Marker:
    format_version: int
    cluster_id: str


def open_storage(
    root: str,
    *,
    create: bool = True,
    holder: str = "a program without a broker",
    broker_id: int | None = None,
    exclusive: bool = True,
    staged_cache_bytes: int = STAGED_CACHE_BYTES,
) -> DeltaStorage:
    """The storage at `root`, a path or a file URL. An absent or empty folder is made a root if `create`.

    `broker_id`: for this broker, beside other brokers; a root of an older format is upgraded first. Without it, for a
    program that writes while no broker runs. Raises `RootInUse` with the holders' own words, or `RootNotUsable`.
    `exclusive=False` without a broker id takes no lock: two storages on one root then race for every version.
    `staged_cache_bytes`: memory for staged batches of transactions.
    """
    return open_storage_on(
        _local_store(root),
        create=create,
        holder=holder,
        broker_id=broker_id,
        exclusive=exclusive,
        staged_cache_bytes=staged_cache_bytes,
    )


def open_storage_on(
    store: ObjectStore,
    *,
    create: bool = True,
    holder: str = "a program without a broker",
    broker_id: int | None = None,
    exclusive: bool = True,
    staged_cache_bytes: int = STAGED_CACHE_BYTES,
    clock: Clock | None = None,
) -> DeltaStorage:
    """See `open_storage`. `clock`: the machine's, unless another one is given."""
    if _read_marker(store) is None and not create:
        raise RootNotUsable(f"{store.url}: expected a bus root, found no {ROOT_MARKER}")
    locks: list[Lock] = []
    try:
        if broker_id is not None:
            locks.append(_share_root(store, holder))
            locks.append(_lock_broker(store, broker_id, holder))
        elif exclusive:
            locks.append(_lock_root(store, holder))
        if broker_id is not None:
            store.check_private()
            _remove_leftovers(store, broker_id)
        # Read again: another process may have made it a root before the lock was taken.
        marker = _read_marker(store) or _write_marker(store)
        is_case_blind = _is_case_blind(store)
    except BaseException as fault:
        for lock in reversed(locks):
            lock.release()
        if not isinstance(fault, StorageFault) or isinstance(fault, RootNotUsable | RootInUse | StorageDamaged):
            raise
        found = "none, and none can be made there" if isinstance(fault, KeyNotFound) else fault
        raise RootNotUsable(f"{store.url}: expected a folder that can be written, found {found}") from fault
    return DeltaStorage(
        store,
        marker.cluster_id,
        locks,
        clock or SystemClock(),
        StagedCache(staged_cache_bytes),
        lease=None if broker_id is None else _broker_lease(broker_id),
        is_case_blind=is_case_blind,
    )


def _lock_root(store: ObjectStore, holder: str) -> Lock:
    """Take the lock for a program that writes while no broker runs."""
    try:
        return store.lock(LOCK, holder)
    except KeyLocked as locked:
        raise _in_use(store, _alive_brokers(store) or [locked.holder], "folder") from None


def _share_root(store: ObjectStore, holder: str) -> Lock:
    """Take the lock for a broker. The first broker creates or upgrades the root under the exclusive lock; the others
    wait for it."""
    for waits_left in reversed(range(_UPGRADE_WAITS)):
        is_ready = _is_ready(_read_marker(store))
        try:
            lock = store.lock(LOCK, holder if is_ready else holder + _UPGRADING, is_shared=is_ready)
        except KeyLocked as locked:
            if not is_ready and _is_ready(_read_marker(store)):
                continue
            if not waits_left or not locked.holder.endswith(_UPGRADING):
                raise _in_use(store, [locked.holder], "folder") from None
            time.sleep(_UPGRADE_WAIT_S)
            continue
        if is_ready:
            return lock
        try:
            _make_ready(store)
        finally:
            lock.release()
    raise RootInUse(f"{store.url} is made and removed again and again by other processes")


def _lock_broker(store: ObjectStore, broker_id: int, holder: str) -> Lock:
    try:
        return store.lock(_broker_lock(broker_id), holder)
    except KeyLocked as locked:
        raise _in_use(store, [locked.holder], "broker.id or folder") from None


def _remove_leftovers(store: ObjectStore, broker_id: int) -> None:
    """Remove unfinished files of brokers that were killed in the middle of a write: all of this broker's lease, because
    whoever holds its lock is the only one to write it; otherwise those that are an hour older than the newest file, by
    the clock of the storage."""
    lease = _broker_lease(broker_id).rpartition("/")[2]
    listings = {folder: store.list(folder) for folder in ("", _CLUSTER)}
    now_ms = max((entry.modified_ms for listing in listings.values() for entry in listing.files), default=0)
    for folder, listing in listings.items():
        for entry in listing.leftovers:
            is_own = folder == _CLUSTER and is_temporary_name(entry.name, lease)
            if is_own or entry.modified_ms <= now_ms - LEFTOVER_AGE_MIN_MS:
                key = f"{folder}/{entry.name}".lstrip("/")
                store.delete(key)
                _log.info("%s: removed, an interrupted write left it", key)


def _broker_lock(broker_id: int) -> str:
    return f"{_CLUSTER}/broker-{broker_id}.lock"


def _broker_lease(broker_id: int) -> str:
    return f"{_CLUSTER}/broker-{broker_id}.lease"


def _alive_brokers(store: ObjectStore) -> list[str]:
    """Return the description that each running broker of this root wrote into its lock."""
    names = [entry.name for entry in store.list(_CLUSTER, with_sizes=False).files if _BROKER_LOCK.fullmatch(entry.name)]
    holders = (store.lock_holder(f"{_CLUSTER}/{name}") for name in names)
    return [holder for holder in holders if holder is not None]


def _in_use(store: ObjectStore, holders: Sequence[str], other: str) -> RootInUse:
    what = "it" if len(holders) == 1 else "them"
    return RootInUse(f"{store.url} is in use by {' and by '.join(holders)}; stop {what} first, or take another {other}")


def _is_ready(marker: _Marker | None) -> bool:
    return marker is not None and marker.format_version == FORMAT_VERSION


def _make_ready(store: ObjectStore) -> None:
    """Make the folder a root, or upgrade one of an older format. Only with the root's lock for oneself. Safe to repeat,
    also after a crash in between."""
    marker = _read_marker(store)
    if marker is None:
        _write_marker(store)
    elif not _is_ready(marker):
        # Only then may several brokers read the metadata: none of them finds it without the fields that it knows.
        add_new_fields(store, partition_folder(_METADATA), CLUSTER_METADATA_VALUE_TYPE, ReadCache())
        store.put(ROOT_MARKER, _encode_marker(marker.cluster_id))
        _log.info("%s: upgraded from format version %d to %d", store.url, marker.format_version, FORMAT_VERSION)


def _is_case_blind(store: ObjectStore) -> bool:
    """Return True if the marker is found by a name in capitals, as on the disks of macOS and Windows."""
    try:
        store.get(ROOT_MARKER.upper())
    except KeyNotFound:
        return False
    return True


def open_reader(root: str) -> RootReader:
    """A root for reading alone: takes no lock, repairs nothing, writes nothing. Raises `RootNotUsable`."""
    store = _local_store(root)
    marker = _read_marker(store)
    if marker is None:
        raise RootNotUsable(f"{store.url}: expected a bus root, found no {ROOT_MARKER}")
    return RootReader(store, marker.cluster_id)


class RootReader:
    """Reads a root without serving it. A broker may be committing meanwhile."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cache = ReadCache()
        self.cluster_id = cluster_id

    @property
    def root_url(self) -> str:
        return self._store.url

    @property
    def store(self) -> ObjectStore:
        return self._store

    def table_url(self, partition: TopicPartition) -> str:
        """The URL under which any Delta reader finds this partition."""
        return self._store.table_url(partition_folder(partition)) or f"{self._store.url}/{partition_folder(partition)}"

    def open_metadata(self) -> PartitionReader:
        """`__cluster_metadata`; its values are structs. `typed_log.replay_values` gives them as rows."""
        return self.open_partition(_METADATA)

    def open_partition(
        self, partition: TopicPartition, *, topic_id: str | None = None, value_type: pa.DataType | None = None
    ) -> PartitionReader:
        """The table at its last version; unless `value_type` is given, an internal topic's values are structs with the
        fields that the table has. Raises `StorageDamaged`, also if it is not there."""
        schema = self._schema(partition) if value_type is None else log_schema(value_type)
        reader = PartitionReader(self._store, partition_folder(partition), schema, self._cache)
        reader.load(topic_id=topic_id)
        return reader

    def follow_partition(self, partition: TopicPartition, *, topic_id: str | None = None) -> FollowingReader:
        """The same, to be looked at again and again."""
        schema = self._schema(partition)
        return FollowingReader(self._store, partition_folder(partition), schema, self._cache, topic_id=topic_id)

    def _schema(self, partition: TopicPartition) -> pa.Schema:
        newest = INTERNAL_VALUE_TYPES.get(partition.topic)
        if newest is None:
            return log_schema(None)
        return log_schema(find_value_type(self._store, partition_folder(partition), newest, self._cache))


class _NamedLocks:
    """One for each name that threads hold or wait for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._users: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        with self._guard:
            self._users[name] += 1
            lock = self._locks.setdefault(name, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._locks[name]


class DeltaStorage:
    """Implements `bus.ports.Storage`."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        locks: Sequence[Lock],
        clock: Clock,
        staged_cache: StagedCache,
        *,
        is_case_blind: bool,
        lease: str | None = None,
    ) -> None:
        """`lease`: the key of a broker's own."""
        self._store = store
        self._lease = lease
        self._clock = clock
        self._cluster_id = cluster_id
        self._is_case_blind = is_case_blind
        self._locks = locks
        self._incarnation = uuid.uuid4().hex  # tells this life of the broker from any other, also of the same epoch
        self._cache = ReadCache()
        self._staged_cache = staged_cache
        # Removing the files of a deleted topic must not run into the creation of its successor; a topic of another name
        # does not wait for it.
        self._folders = _NamedLocks()

    @property
    def root_url(self) -> str:
        return self._store.url

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def is_case_blind(self) -> bool:
        return self._is_case_blind

    def close(self) -> None:
        for lock in reversed(self._locks):
            lock.release()

    def check_held(self) -> None:
        for lock in self._locks:
            lock.check_held()

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def is_alive(self, broker_id: int) -> bool:
        return self._store.lock_holder(_broker_lock(broker_id)) is not None

    def renew_lease(self, content: bytes) -> None:
        """Write it by the calls that read and make versions: where they fail, the lease does not change, and other
        brokers see that."""
        if self._lease is not None:
            with contextlib.suppress(KeyNotFound):
                self._store.get(self._lease)
            self._store.delete(self._lease)
            self._store.create(self._lease, content)

    def read_lease(self, broker_id: int) -> bytes:
        return self._get_if_there(_broker_lease(broker_id))

    def renew_lock(self) -> None:
        """The broker's lock is the last one that was taken."""
        for lock in self._locks[1:]:
            lock.renew()

    def read_lock(self, broker_id: int) -> bytes:
        return self._get_if_there(_broker_lock(broker_id))

    def _get_if_there(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except KeyNotFound:
            return b""

    def open_metadata(self) -> DeltaTypedLog:
        self._check_metadata_not_lost()
        # A root that has none yet is of this version, and no other version is to open it.
        table = self.create_partition(_METADATA, topic_id=self._cluster_id, is_managed=True)
        return DeltaTypedLog(table, CLUSTER_METADATA_VALUE_TYPE)

    def open_users(self, *, create: bool) -> DeltaTypedLog | None:
        self._store.check_private()
        if _topic_id_of(self._store, _USERS_FOLDER) is None:
            if not create:
                return None
            # Not managed: its folder is the owner's alone, and a broker of any version has to open it.
            self._create_version_0(_USERS, _USERS_FOLDER, USERS_VALUE_TYPE, topic_id=self._cluster_id, is_managed=False)
        table = DeltaPartitionTable(
            self._store,
            _USERS_FOLDER,
            topic_id=self._cluster_id,
            cache=self._cache,
            clock=self._clock,
            value_type=USERS_VALUE_TYPE,
            incarnation=self._incarnation,
        )
        return DeltaTypedLog(table, USERS_VALUE_TYPE)

    def keyed_rows(self, topic: str) -> DeltaKeyedRows:
        return DeltaKeyedRows(topic, INTERNAL_VALUE_TYPES[topic])

    def create_partition(
        self,
        partition: TopicPartition,
        *,
        topic_id: str,
        is_managed: bool = False,
        check_removal: Callable[[], None] | None = None,
    ) -> DeltaPartitionTable:
        folder = partition_folder(partition)
        with self._folders.hold(partition.topic):
            if self._is_case_blind:
                self._check_own_folder(partition.topic)
            found = _topic_id_of(self._store, folder)
            if found is not None and found != topic_id and partition == _METADATA:
                raise StorageDamaged(f"{folder}: expected the log of cluster {topic_id}, found that of {found}")
            if found != topic_id:
                if partition != _METADATA:  # another broker may be creating it at this moment
                    if found is not None and check_removal is not None:
                        check_removal()
                    _delete_table(self._store, folder, topic_id=found)
                value_type = INTERNAL_VALUE_TYPES.get(partition.topic)
                self._create_version_0(partition, folder, value_type, topic_id=topic_id, is_managed=is_managed)
        return self.open_partition(partition, topic_id=topic_id)

    def _check_own_folder(self, topic: str) -> None:
        """Raise `StorageFault` if the folder is that of a topic of another case: what lies there is not this one's to
        remove."""
        for other in self._store.list(TOPICS_FOLDER).folders:
            if other != topic and other.casefold() == topic.casefold():
                raise StorageFault(
                    f"{TOPICS_FOLDER}/{topic}: expected a folder of its own, found that of topic {other}"
                )

    def open_partition(self, partition: TopicPartition, *, topic_id: str) -> DeltaPartitionTable:
        return DeltaPartitionTable(
            self._store,
            partition_folder(partition),
            topic_id=topic_id,
            cache=self._cache,
            clock=self._clock,
            value_type=INTERNAL_VALUE_TYPES.get(partition.topic),
            incarnation=self._incarnation,
            staged_cache=self._staged_cache,
        )

    def measure_volume(self) -> Volume | None:
        return self._store.measure_volume()

    def measure_files(self, partition: TopicPartition) -> TableFiles:
        top = self._store.list(partition_folder(partition))
        data = [*top.files, *top.leftovers]
        others = [
            entry
            for name in top.folders
            for entry in _entries_below(self._store, f"{partition_folder(partition)}/{name}")
        ]
        data_bytes = sum(entry.size for entry in data)
        return TableFiles(len(data) + len(others), data_bytes + sum(entry.size for entry in others), data_bytes)

    def delete_topic(self, topic: str, *, topic_id: str) -> None:
        with self._folders.hold(topic):
            for partition in list_partitions(self._store, topic):
                folder = partition_folder(partition)
                found = _topic_id_of(self._store, folder)
                if found in (topic_id, None):
                    _delete_table(self._store, folder, topic_id=found)
            left = self._store.list(f"{TOPICS_FOLDER}/{topic}")
            if not left.files and not left.folders:
                self._store.delete_folder(f"{TOPICS_FOLDER}/{topic}")

    def _check_metadata_not_lost(self) -> None:
        """A root with topics had metadata: an empty log in its place would make all of them unknown."""
        if _topic_id_of(self._store, partition_folder(_METADATA)) is not None:
            return
        names = self._store.list(TOPICS_FOLDER).folders
        topics = [name for name in names if name != CLUSTER_METADATA_TOPIC and list_partitions(self._store, name)]
        if topics:
            raise StorageDamaged(
                f"{partition_folder(_METADATA)}: expected the cluster's metadata, found none, "
                f"but there are topics: {', '.join(topics[:3])}"
            )

    def _create_version_0(
        self,
        partition: TopicPartition,
        folder: str,
        value_type: pa.StructType | None,
        *,
        topic_id: str,
        is_managed: bool,
    ) -> None:
        data = encode_create(
            partition,
            topic_id=topic_id,
            table_id=str(uuid.uuid4()),
            txn_id=str(uuid.uuid4()),
            schema=log_schema(value_type),
            now_ms=self._clock.now_ms(),
            is_managed=is_managed,
        )
        try:
            self._store.create(f"{folder}/{LOG_FOLDER}/{version_name(0)}", data)
        except KeyExists:
            # Another storage on this root was faster; opening tells whether it made the same topic.
            return


def _entries_below(store: ObjectStore, folder: str) -> Iterator[Entry]:
    found = store.list(folder)
    yield from (*found.files, *found.leftovers)
    for name in found.folders:
        yield from _entries_below(store, f"{folder}/{name}")


def _topic_id_of(store: ObjectStore, folder: str) -> str | None:
    """Return the topic id of the table, from its oldest version or any checkpoint. None: nothing ever was committed
    there.

    Raises `StorageDamaged` if there is a log that does not tell: it may belong to another cluster, so it must not be
    removed.
    """
    log_folder = f"{folder}/{LOG_FOLDER}"
    listing = list_log(store, folder)
    if 0 in listing.versions:
        try:
            metadata = decode_commit(0, store.get(f"{log_folder}/{version_name(0)}")).metadata
            if metadata is not None and metadata.topic_id is not None:
                return metadata.topic_id
        except (MalformedCommit, KeyNotFound):
            pass
    hint = read_hint(store, log_folder)
    for version in reversed(listing.checkpoints):
        try:
            return decode_checkpoint(version, load_proved(store, log_folder, version, hint)).metadata.topic_id
        except (MalformedCheckpoint, KeyNotFound):
            continue
    if listing.versions or listing.checkpoints:
        raise StorageDamaged(f"{log_folder}: expected a topic id in version 0 or a checkpoint, found none")
    return None


def _delete_table(store: ObjectStore, folder: str, *, topic_id: str | None) -> None:
    """Data first, the oldest of the log last: until then an interrupted deletion still knows whose files these are.

    Another controller may have gone on meanwhile, for a caller that stood still. So nothing goes but what was there
    while the table was `topic_id`'s, and no name that the next table has too once the oldest of the log is another
    file. Raises `StorageFault` then."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    data_files = store.list(folder, with_sizes=False).files
    log_files = store.list(log_folder, with_sizes=False).files
    oldest = f"{log_folder}/{log_files[0].name}" if log_files else None
    stamp = _find_stamp(store, oldest)
    if _topic_id_of(store, folder) != topic_id:
        raise StorageFault(f"{folder}: expected the table of topic id {topic_id}, found another one meanwhile")
    for entry in data_files:
        store.delete(f"{folder}/{entry.name}")
    for entry in reversed(log_files):
        if _find_stamp(store, oldest) != stamp:
            raise StorageFault(f"{folder}: another broker has removed this table meanwhile")
        store.delete(f"{log_folder}/{entry.name}")
    if not store.list(log_folder, with_sizes=False).files:
        store.delete_folder(folder)


def _find_stamp(store: ObjectStore, key: str | None) -> Stamp | None:
    try:
        return None if key is None else store.stamp(key)
    except KeyNotFound:
        return None


def _local_store(root: str) -> LocalStore:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", root)
    if scheme is None:
        path = root
    elif scheme[1].lower() == "file" and urlsplit(root).netloc in ("", "localhost"):
        path = unquote(urlsplit(root).path)
    else:
        raise RootNotUsable(f"{root}: expected a path or a file:/// URL, {scheme[1]}:// is not supported yet")
    if not path:
        raise RootNotUsable(f"expected the path of a bus root, found {root!r}")
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise RootNotUsable(f"{path}: expected a folder, found a file")
    return LocalStore(path)


def _read_marker(store: ObjectStore) -> _Marker | None:
    """None if the root is empty. Raises `RootNotUsable` for anything that is no root of ours."""
    try:
        data, others = _look_for_marker(store)
    except StorageFault as fault:
        raise RootNotUsable(f"{store.url}: {fault}") from fault
    if data is None:
        if others:
            raise RootNotUsable(
                f"{store.url}: expected a bus root or an empty folder, found {', '.join(others[:3])} and no "
                f"{ROOT_MARKER}"
            )
        return None
    try:
        marker = parse_json(data)
        format_version, cluster_id = int(marker["format_version"]), str(marker["cluster_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RootNotUsable(f"{store.url}/{ROOT_MARKER}: expected format_version and cluster_id: {error}") from None
    if format_version > FORMAT_VERSION:
        raise RootNotUsable(
            f"{store.url}: expected format version {FORMAT_VERSION}, found {format_version}: "
            f"a newer bus wrote this root"
        )
    return _Marker(format_version, cluster_id)


def _look_for_marker(store: ObjectStore) -> tuple[bytes | None, list[str]]:
    """The marker, or what is in the root without one. Another process may make it a root between the two looks."""
    others: list[str] = []
    for _ in range(2):
        try:
            return store.get(ROOT_MARKER), []
        except KeyNotFound:
            found = store.list("", with_sizes=False)
        others = sorted({*(entry.name for entry in found.files), *found.folders} - _IGNORED_IN_EMPTY_ROOT)
        if ROOT_MARKER not in others:
            break
    return None, others


def _encode_marker(cluster_id: str) -> bytes:
    return json.dumps({"format_version": FORMAT_VERSION, "cluster_id": cluster_id}).encode() + b"\n"


def _write_marker(store: ObjectStore) -> _Marker:
    cluster_id = str(uuid.uuid4())
    try:
        store.create(ROOT_MARKER, _encode_marker(cluster_id))
    except KeyExists:
        found = _read_marker(store)
        assert found is not None, f"{store.url}: the marker exists and does not"
        return found
    return _Marker(FORMAT_VERSION, cluster_id)
