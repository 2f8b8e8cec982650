"""Batches of open transactions, staged beside a partition's table, where no reader of the table sees them.

Guards two promises. What `stage` and `save` reported is on the disk, whole and under its name; and what is read back is
what was staged: a file that was torn or changed is never taken for records. `_staged` in the table's folder has a
folder for each partition of `__transaction_state` whose transactions staged something, and that a file for each batch,
or for several that were saved at once, named by producer id, epoch, first and last sequence. Those folders stay: a file
costs a sync of itself and one of its folder, and a listing sees the open transactions of one coordinator. Delta readers
and VACUUM pass over folders that begin with an underscore; recovery and orphan cleaning look at files only.

A file is an Arrow IPC stream of one batch, in the schema's metadata what a batch has beside its columns, and behind the
stream a trailer that proves its bytes before Arrow sees them. What this process has staged itself it reads from memory
(`StagedCache`), as far as there is room; what it holds is in no file at all. Two leaders may have staged the same
sequences, as long as the one does not know of the other: files may overlap, and any of them will do.
"""

from __future__ import annotations

import re
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import ProducerStamp, RecordBatch
from bus.ports import Staged, StagingKey
from bus.records.arrow_batches import MalformedRecords, check_records, decode_arrow, encode_arrow_buffer, join_records
from bus.storage_delta.stores.store import Entry, KeyExists, KeyNotFound, ObjectStore, OutcomeUnknown

STAGED_CACHE_BYTES = 128 << 20  # the default of programs without a broker's configuration
# The objects around the buffers of a batch.
_BATCH_OVERHEAD_BYTES = 1024


@dataclass(slots=True)
class _Held:
    """The batches of one transaction in one partition. `size_bytes` counts all batches with their overhead."""

    batches: dict[int, RecordBatch] = field(default_factory=dict)  # keyed by first sequence
    unsaved: set[int] = field(default_factory=set)  # those in no file
    size_bytes: int = 0

    def put(self, first_sequence: int, batch: RecordBatch) -> None:
        replaced = self.batches.get(first_sequence)
        self.batches[first_sequence] = batch
        self.size_bytes += _cost_of(batch) - (0 if replaced is None else _cost_of(replaced))

    def remove_unsaved(self, first_sequence: int) -> None:
        self.unsaved.remove(first_sequence)
        self.size_bytes -= _cost_of(self.batches.pop(first_sequence))


class StagedCache:
    """Batches of open transactions of all partitions in memory, so that a commit does not read back what this process
    has staged. `name` identifies a transaction in one partition; a partition that is created later under the same name
    has other names. Safe for threads. Does no I/O.

    Guards three promises. A batch is here only if this process has written its file, whole and synced, from the same
    columns, or if it is in no file yet (`hold`): so it equals its file. Batches in no file stay until they are saved or
    dropped. And the bytes are bounded over all partitions: the transaction that was saved to files and has waited
    longest for another batch leaves first, as a whole, and is read from its files."""

    def __init__(self, bytes_max: int = STAGED_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._unsaved: dict[str, _Held] = {}  # not all of it is in files
        self._size_bytes = 0
        self._unsaved_bytes = 0
        self._mutex = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, name: str, first_sequence: int, batch: RecordBatch) -> None:
        """The file of `batch` was just written, and is durable. It takes the place of those of its records that were in
        no file."""
        with self._mutex:
            held = self._take(name)
            sequences = range(first_sequence, first_sequence + batch.record_count)
            for first in [first for first in held.unsaved if first in sequences]:
                held.remove_unsaved(first)
            held.put(first_sequence, batch)
            self._keep(name, held)

    def hold(self, name: str, first_sequence: int, batch: RecordBatch) -> bool:
        """`batch` is in no file. False: there is no room for more of those."""
        with self._mutex:
            held = self._take(name)
            has_room = self._unsaved_bytes + held.size_bytes + _cost_of(batch) <= self._bytes_max
            if has_room:
                held.put(first_sequence, batch)
                held.unsaved.add(first_sequence)
            self._keep(name, held)
            return has_room

    def unsaved(self, name: str) -> Sequence[RecordBatch]:
        """Those of the transaction that are in no file, in order."""
        with self._mutex:
            held = self._unsaved.get(name, _Held())
            return [held.batches[first] for first in sorted(held.unsaved)]

    def forget(self, name: str) -> bool:
        """Let go of those that are in no file; whether those were all of the transaction."""
        with self._mutex:
            if name not in self._unsaved:
                return False
            held = self._take(name)
            for first_sequence in list(held.unsaved):
                held.remove_unsaved(first_sequence)
            self._keep(name, held)
            return not held.batches

    def find(self, name: str, last_sequence: int) -> Sequence[RecordBatch] | None:
        """Batches that follow each other from sequence 0 to `last_sequence` or beyond; None if any of them is not
        here."""
        found, sequence = list[RecordBatch](), 0
        with self._mutex:
            held = self._find(name)
            while sequence <= last_sequence:
                batch = held.batches.get(sequence)
                if batch is None:
                    return None
                found.append(batch)
                sequence += batch.record_count
        return found

    def drop(self, name: str) -> Sequence[RecordBatch] | None:
        """Remove the transaction. Return its batches that are in files, in order; None unless the batches here have no
        gap from sequence 0 on."""
        with self._mutex:
            held = self._take(name)
        dropped, sequence = list[RecordBatch](), 0
        while sequence in held.batches:
            dropped.append(held.batches[sequence])
            sequence += dropped[-1].record_count
        if not dropped or len(dropped) < len(held.batches):
            return None
        return [batch for first, batch in sorted(held.batches.items()) if first not in held.unsaved]

    def _find(self, name: str) -> _Held:
        return self._unsaved.get(name) or self._held.get(name) or _Held()

    def _take(self, name: str) -> _Held:
        """It is here no more."""
        held = self._unsaved.pop(name, None)
        if held is not None:
            self._unsaved_bytes -= held.size_bytes
        else:
            held = self._held.pop(name, _Held())
        self._size_bytes -= held.size_bytes
        return held

    def _keep(self, name: str, held: _Held) -> None:
        if not held.batches:
            return
        self._size_bytes += held.size_bytes
        if held.unsaved:
            self._unsaved[name] = held
            self._unsaved_bytes += held.size_bytes
        else:
            self._held[name] = held
        while self._size_bytes > self._bytes_max and self._held:
            self._size_bytes -= self._held.popitem(last=False)[1].size_bytes


def _cost_of(batch: RecordBatch) -> int:
    return batch.size_bytes + _BATCH_OVERHEAD_BYTES


STAGED_FOLDER = "_staged"
_FOLDER_NAME = re.compile(r"0|[1-9]\d{0,9}")
_FILE_NAME = re.compile(r"(\d{1,19})-(\d{1,5})-(\d{1,10})-(\d{1,10})\.arrow")
_SEQUENCE_MAX = (1 << 31) - 1
_EPOCH_MAX = (1 << 15) - 1

# Batches in memory alone share a file up to this size: the number of files determines the time.
_JOINED_BYTES_MAX = 16 << 20

_TRAILER = struct.Struct("<4sI")  # behind the end of the stream, where no reader of Arrow looks: magic, CRC-32
_MAGIC = b"BUS1"
_PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _TIMESTAMP_MS = (
    f"bus.{name}".encode() for name in ("producer_id", "producer_epoch", "base_sequence", "timestamp_ms")
)


@dataclass(frozen=True, slots=True)
class _File:
    """A staged batch by its name: sequences `first` to `last` of `transaction`."""

    transaction: StagingKey
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{_prefix_of(self.transaction)}{self.first}-{self.last}.arrow"


class DeltaStagedTransactions:
    """Implements `bus.ports.StagedTransactions`. What is in `cache` is not read from the files."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        value_type: pa.DataType | None = None,
        cache: StagedCache | None = None,
        topic_id: str = "",
    ) -> None:
        """`folder`: the table's. `topic_id` tells it, in `cache`, from a table that was in this folder before."""
        self._store = store
        self._folder = f"{folder}/{STAGED_FOLDER}"
        self._value_type = value_type
        self._cache = StagedCache(0) if cache is None else cache
        self._topic_id = topic_id
        self._mutex = threading.Lock()
        self._cleaned: set[str] = set()

    def stage(self, key: StagingKey, batch: RecordBatch) -> Refused | None:
        file = self._file_of(key, batch)
        self._clean(self._folder_of(key))
        try:
            self._create(self._path(file), _encode(batch))
            self._cache.add(self._cached_name(key), file.first, batch)
            return None
        except KeyExists:
            return self._compare(file, batch)
        except OutcomeUnknown as unknown:
            try:
                return self._compare(file, batch)
            except KeyNotFound:
                raise StorageFault(f"{self._path(file)}: it is not known whether it is there: {unknown}") from unknown

    def hold(self, key: StagingKey, batch: RecordBatch) -> bool:
        return self._cache.hold(self._cached_name(key), self._file_of(key, batch).first, batch)

    def save(self, key: StagingKey) -> Refused | None:
        name = self._cached_name(key)
        for batches in _gather(self._cache.unsaved(name)):
            refused = self.stage(key, join_records(batches, self._value_type))
            if refused is not None:
                return refused
        if self._cache.unsaved(name):  # another leader's files were there: they count
            self._cache.drop(name)
        return None

    def forget(self, key: StagingKey) -> bool:
        return self._cache.forget(self._cached_name(key))

    def release(self, key: StagingKey) -> None:
        self._cache.drop(self._cached_name(key))

    def _clean(self, folder: str) -> None:
        """Once, before this process writes there: delete the unfinished files of interrupted writes. A former leader
        whose write is under way loses its file as well, so that write fails."""
        with self._mutex:
            if folder not in self._cleaned:
                for entry in self._store.list(folder, with_sizes=False).leftovers:
                    self._store.delete(f"{folder}/{entry.name}")
                self._cleaned.add(folder)

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._store.create(path, data)
        except KeyNotFound:  # the folder has gone with an earlier topic of this name, which another broker deleted
            self._store.create(path, data)

    def find(self, key: StagingKey) -> Staged | None:
        found = self._store.list(self._folder_of(key), prefix=_prefix_of(key)).files
        return _sum_up(files) if (files := list(_parse_files(key.coordinator_partition, found))) else None

    def recall(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch] | None:
        found = self._cache.find(self._cached_name(key), last_sequence)
        if found is None or sum(batch.record_count for batch in found) != last_sequence + 1:
            return None
        return found

    def read(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        staged_here = self._cache.find(self._cached_name(key), last_sequence)
        return self._read_files(key, last_sequence) if staged_here is None else self._cut(staged_here, last_sequence)

    def _cut(self, batches: Sequence[RecordBatch], last_sequence: int) -> Sequence[RecordBatch]:
        """`batches` are dense from sequence 0 on; only the last one goes beyond `last_sequence`."""
        beyond = sum(batch.record_count for batch in batches) - (last_sequence + 1)
        if beyond <= 0:
            return batches
        *whole, last = batches
        return [*whole, _part_of(last, 0, last.record_count - beyond, self._value_type)]

    def _read_files(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        files = self._list_files(key)
        batches, sequence = list[RecordBatch](), 0
        while sequence <= last_sequence:
            file, batch = self._read_from(key, files, sequence)
            end = min(file.last, last_sequence) + 1
            batches.append(_part_of(batch, sequence - file.first, end - file.first, self._value_type))
            sequence = end
        return batches

    def _list_files(self, key: StagingKey) -> Sequence[_File]:
        found = self._store.list(self._folder_of(key), with_sizes=False, prefix=_prefix_of(key)).files
        return [file for file, _ in _parse_files(key.coordinator_partition, found)]

    def drop(self, key: StagingKey) -> None:
        staged_here = self._cache.drop(self._cached_name(key))
        files = self._list_files(key) if staged_here is None else [self._file_of(key, batch) for batch in staged_here]
        for file in files:
            self._store.delete(self._path(file))

    def list(self) -> Sequence[tuple[StagingKey, Staged]]:
        found: dict[StagingKey, list[tuple[_File, Entry]]] = {}
        folders = self._store.list(self._folder, with_sizes=False).folders
        for folder in filter(_FOLDER_NAME.fullmatch, folders):
            for file, entry in _parse_files(int(folder), self._store.list(f"{self._folder}/{folder}").files):
                found.setdefault(file.transaction, []).append((file, entry))
        return [(key, _sum_up(files)) for key, files in found.items()]

    def _cached_name(self, key: StagingKey) -> str:
        return f"{self._topic_id}/{self._folder_of(key)}/{_prefix_of(key)}"

    def _folder_of(self, key: StagingKey) -> str:
        return f"{self._folder}/{key.coordinator_partition}"

    def _path(self, file: _File) -> str:
        return f"{self._folder_of(file.transaction)}/{file.name}"

    def _file_of(self, key: StagingKey, batch: RecordBatch) -> _File:
        stamp = batch.producer
        assert stamp is not None, f"{self._folder}: expected a batch of {key}, found one of no producer"
        is_its = (stamp.producer_id, stamp.producer_epoch) == (key.producer_id, key.producer_epoch)
        assert is_its, f"{self._folder}: expected a batch of {key}, found one of {stamp}"
        first, last = stamp.base_sequence, stamp.base_sequence + batch.record_count - 1
        assert 0 <= first <= last <= _SEQUENCE_MAX, f"{self._folder}: a transaction has sequences {first} to {last}"
        return _File(key, first, last)

    def _compare(self, file: _File, batch: RecordBatch) -> Refused | None:
        """Compare the batch with the file of the same name. The file's writer may have been killed before the name was
        synced."""
        data = self._store.get(self._path(file))
        found = self._decode(file, data)
        if not _has_same_records(found, batch):
            key, stamp = file.transaction, batch.producer
            return Refused(
                ErrorCode.INVALID_RECORD,
                f"expected the records that producer {key.producer_id} sent before under epoch {key.producer_epoch} "
                f"and sequences {file.first} to {file.last}, found others under {stamp}",
            )
        self._store.confirm(self._path(file), data)
        return None

    def _read_from(self, key: StagingKey, files: Iterable[_File], sequence: int) -> tuple[_File, RecordBatch]:
        """Return a batch that contains `sequence`; of several, the one that reaches farthest, unless it cannot be
        read."""
        holders = sorted((file for file in files if file.first <= sequence <= file.last), key=lambda file: -file.last)
        fault: StorageFault | None = None
        for file in holders:
            try:
                return file, self._decode(file, self._store.get(self._path(file)))
            except StorageFault as error:
                fault = fault or error
        if fault is None:
            names = f"{self._folder_of(key)}/{_prefix_of(key)}*.arrow"
            fault = StorageFault(f"{names}: expected sequence {sequence} in a staged file, found none")
        raise fault

    def _decode(self, file: _File, data: bytes) -> RecordBatch:
        """Raises `StorageFault`."""
        stamp = ProducerStamp(file.transaction.producer_id, file.transaction.producer_epoch, file.first)
        try:
            return _decode(data, stamp, file.last - file.first + 1, self._value_type)
        except MalformedRecords as malformed:
            raise StorageFault(f"{self._path(file)}: {malformed}") from None


def _gather(batches: Iterable[RecordBatch]) -> Iterator[Sequence[RecordBatch]]:
    """Those that share a file."""
    gathered, size_bytes = list[RecordBatch](), 0
    for batch in batches:
        if gathered and size_bytes + batch.size_bytes > _JOINED_BYTES_MAX:
            yield gathered
            gathered, size_bytes = [], 0
        gathered.append(batch)
        size_bytes += batch.size_bytes
    if gathered:
        yield gathered


def _prefix_of(key: StagingKey) -> str:
    """The names of the transaction's files begin with it, and no others in the same folder."""
    return f"{key.producer_id}-{key.producer_epoch}-"


def _parse_files(coordinator_partition: int, entries: Iterable[Entry]) -> Iterator[tuple[_File, Entry]]:
    """Without files whose names this module does not make."""
    for entry in entries:
        match = _FILE_NAME.fullmatch(entry.name)
        if match is None:
            continue
        producer_id, producer_epoch, first, last = map(int, match.groups())
        file = _File(StagingKey(coordinator_partition, producer_id, producer_epoch), first, last)
        is_possible = producer_id < 1 << 63 and producer_epoch <= _EPOCH_MAX and first <= last <= _SEQUENCE_MAX
        if is_possible and entry.name == file.name:
            yield file, entry


def _sum_up(files: Sequence[tuple[_File, Entry]]) -> Staged:
    """Sum up the files of one transaction, which has at least one."""
    return Staged(
        last_sequence=_dense_end(file for file, _ in files),
        size_bytes=sum(entry.size for _, entry in files),
        newest_ms=max(entry.modified_ms for _, entry in files),
    )


def _dense_end(files: Iterable[_File]) -> int:
    """The last sequence up to which the files have all from 0 on, -1 if 0 is missing."""
    last = -1
    for file in sorted(files, key=lambda file: file.first):
        if file.first > last + 1:
            break
        last = max(last, file.last)
    return last


def _encode(batch: RecordBatch) -> bytes:
    stamp, columns = batch.producer, batch.columns
    assert stamp is not None, "only batches of a transaction are staged"
    metadata = {
        _PRODUCER_ID: str(stamp.producer_id),
        _PRODUCER_EPOCH: str(stamp.producer_epoch),
        _BASE_SEQUENCE: str(stamp.base_sequence),
        _TIMESTAMP_MS: str(batch.timestamp_min_ms),
    }
    stream = encode_arrow_buffer(columns.replace_schema_metadata(metadata))
    return b"".join((stream, _TRAILER.pack(_MAGIC, zlib.crc32(stream))))


def _decode(data: bytes, stamp: ProducerStamp, record_count: int, value_type: pa.DataType | None) -> RecordBatch:
    """Raises `MalformedRecords`."""
    stream, trailer = memoryview(data)[: -_TRAILER.size], data[-_TRAILER.size :]
    if len(trailer) < _TRAILER.size or trailer != _TRAILER.pack(_MAGIC, zlib.crc32(stream)):
        raise MalformedRecords(f"expected a staged batch and its checksum, found {len(data)} bytes that are none")
    metadata = list[Mapping[bytes, bytes]]()

    def take(schema: pa.Schema) -> None:
        metadata.append(schema.metadata or {})
        _check_stamp(metadata[0], stamp)

    columns = decode_arrow(stream, take)
    if columns.num_rows != record_count:
        raise MalformedRecords(f"expected {record_count} records, found {columns.num_rows}")
    timestamp_ms = _number(metadata[0], _TIMESTAMP_MS)
    checked = check_records(columns, default_timestamp_ms=timestamp_ms, value_type=value_type)
    return replace(checked, producer=stamp)


def _check_stamp(metadata: Mapping[bytes, bytes], stamp: ProducerStamp) -> None:
    """The file is the one that its name says. Raises `MalformedRecords`."""
    found = ProducerStamp(*(_number(metadata, name) for name in (_PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE)))
    if found != stamp:
        raise MalformedRecords(f"expected a batch of {stamp}, found one of {found}")


def _number(metadata: Mapping[bytes, bytes], name: bytes) -> int:
    try:
        return int(metadata[name])
    except (KeyError, ValueError):
        raise MalformedRecords(f"expected a number as {name.decode()}, found {metadata.get(name)!r:.100}") from None


def _part_of(batch: RecordBatch, begin: int, end: int, value_type: pa.DataType | None) -> RecordBatch:
    """The records at the positions `begin` up to, but not including, `end`."""
    if begin == 0 and end == batch.record_count:
        return batch
    assert batch.producer is not None, "a staged batch has a producer"
    part = check_records(
        batch.columns.slice(begin, end - begin), default_timestamp_ms=batch.timestamp_min_ms, value_type=value_type
    )
    return replace(part, producer=replace(batch.producer, base_sequence=batch.producer.base_sequence + begin))


# The columns that a producer sends. Timestamps are not compared: if the producer gives none, the broker sets another
# one with every retry.
_COMPARED = ("key", "value", "headers")


def _has_same_records(one: RecordBatch, other: RecordBatch) -> bool:
    return all(_column(one, name) == _column(other, name) for name in _COMPARED)


def _column(batch: RecordBatch, name: str) -> Any:
    """None for a column that is null in every record."""
    index = batch.columns.schema.get_field_index(name)
    return None if index < 0 else batch.columns.column(index)
