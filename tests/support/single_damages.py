"""Healthy tables of several shapes, and each damage that one file of them may take."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.support.memory_store import MemoryStore
from tests.support.table_bench import FOLDER, TableBench

LOG = f"{FOLDER}/_delta_log"
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Damage:
    """`keys`: what it changed."""

    name: str
    keys: tuple[str, ...]
    files: Files


def files_of(bench: TableBench) -> dict[str, bytes]:
    found = {}
    for folder in (FOLDER, LOG):
        for entry in bench.store.list(folder).files:
            found[f"{folder}/{entry.name}"] = bytes(bench.store.get(f"{folder}/{entry.name}"))
    return found


def store_of(bench: TableBench, files: Files) -> MemoryStore:
    """The root of `bench` with these files of its table."""
    store = MemoryStore()
    for entry in bench.store.list("").files:
        store.put(entry.name, bench.store.get(entry.name))
    for key, data in files.items():
        store.put(key, data)
    return store


# ------------------------------------------------------------------ shapes


def append(bench: TableBench, number: int) -> None:
    first = bench.table.state.high_watermark
    rows = [(b"key %d" % (n % 4), b"value %d" % n) for n in range(first, first + 3)]
    bench.append(*rows, producer=(7 + number % 2, 0, 3 * (number // 2)))


def plain(bench: TableBench) -> None:
    for number in range(3):
        append(bench, number)


def checkpoint_and_tail(bench: TableBench) -> None:
    for number in range(6):
        append(bench, number)
        if number in (1, 3):
            bench.table.cleanup.write_checkpoint()


def rolled(bench: TableBench) -> None:
    for number in range(5):
        append(bench, number)
    bench.roll(0, 3)
    append(bench, 5)


def compacted(bench: TableBench) -> None:
    for number in range(5):
        append(bench, number)
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    append(bench, 5)


def retired(bench: TableBench) -> None:
    for number in range(5):
        append(bench, number)
    bench.table.cleanup.advance_log_start(7, leader_epoch=0, now_ms=bench.now_ms)
    bench.table.cleanup.write_checkpoint()
    append(bench, 5)


def versions_dropped(bench: TableBench) -> None:
    for number in range(5):
        append(bench, number)
    bench.table.cleanup.write_checkpoint()
    append(bench, 5)
    bench.table.cleanup.write_checkpoint()
    append(bench, 6)
    for version in range(5):
        bench.store.delete(f"{LOG}/{version:020d}.json")


def healthy(shape: str) -> TableBench:
    """The same bytes whenever it is made."""
    chance, drawn = random.Random(shape), uuid.uuid4
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)
    try:
        bench = TableBench()
        bench.now_ms = 1_700_000_000_000  # checkpoints name removed files for 10,000 days
        SHAPES[shape](bench)
    finally:
        uuid.uuid4 = drawn
    return bench


SHAPES: dict[str, Callable[[TableBench], None]] = {
    shape.__name__: shape for shape in (plain, checkpoint_and_tail, rolled, compacted, retired, versions_dropped)
}


# ------------------------------------------------------------------ damages


def single_damages(files: Files) -> Iterator[Damage]:
    """Yield what one fault of a disk, or of a hand, does to one file or to two of a kind."""
    for key, data in sorted(files.items()):
        short = key.rsplit("/", 1)[1]
        others = {other: kept for other, kept in files.items() if other != key}
        yield Damage(f"lose {short}", (key,), others)
        for name, bad in _spoiled(data):
            if bad != data:
                yield Damage(f"{name} {short}", (key,), {**others, key: bad})
        for name, other in _renamed(key):
            if other not in files:
                yield Damage(f"{name} {short}", (key, other), {**others, other: data})
                yield Damage(f"copy, {name} {short}", (other,), {**files, other: data})
    for kind in (".json", ".checkpoint.parquet", ".parquet"):
        same = sorted(key for key in files if key.endswith(kind) and (LOG in key) == (kind != ".parquet"))
        for first, second in pairwise(same):
            swapped = {**files, first: files[second], second: files[first]}
            yield Damage(f"swap {first.rsplit('/', 1)[1]} and the next", (first, second), swapped)


def _spoiled(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "halve", data[: len(data) // 2]
    yield "cut the end of", data[:-1]
    yield "zero", bytes(len(data))
    yield "zero the end of", data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    seed = int.from_bytes(hashlib.sha256(data).digest()[:4], "big")
    for number in range(4):
        at = (number * len(data) // 4 + seed % max(1, len(data) // 4)) % max(1, len(data))
        yield f"flip byte {at} of", data[:at] + bytes([data[at] ^ (1 << number * 2)]) + data[at + 1 :]


def _renamed(key: str) -> Iterator[tuple[str, str]]:
    folder, name = key.rsplit("/", 1)
    if name[:20].isdigit():
        yield "rename to a later number", f"{folder}/{int(name[:20]) + 1:020d}{name[20:]}"
        yield "rename to another name", f"{folder}/found-{name}"
    else:
        yield "rename", f"{folder}/found-{name}"
