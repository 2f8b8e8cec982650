"""Copies a bus root while its brokers work: `python copy_root.py ROOT COPY`. COPY must not exist.

What the copy has is a root that opens, with every record that was acknowledged before the copy began. The order does
it. A version names only data files that were written before it, so a table's log is copied first, and its data files
after it. Metadata, transactions and committed offsets come before the records that they speak of. And names are listed
twice: a listing may miss a version that is made while it is taken, and yet have the one after it; the second one misses
none of those that the first has seen.

Create and delete no topics meanwhile. A transaction that ends meanwhile may be in the copy in some of its partitions
alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

FIRST = ("__cluster_metadata", "__transaction_state", "__consumer_offsets")


def copy_root(root: Path, copy: Path) -> None:
    copy.mkdir(mode=0o750)
    tables = [table for table in (root / "private" / "users",) if table.is_dir()]
    topics = sorted((root / "topics").iterdir(), key=lambda topic: (topic.name not in FIRST, topic.name))
    for topic in topics:
        tables += sorted(table for table in topic.iterdir() if table.name.isdecimal())
    for table in tables:
        copy_log(table / "_delta_log", copy / table.relative_to(root) / "_delta_log")
    for table in tables:
        copy_others(table, copy / table.relative_to(root))
    if (copy / "private").is_dir():
        (copy / "private").chmod(0o700)
    shutil.copy2(root / "bus-root.json", copy)  # last: until then the copy is no root


def copy_log(log: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    copy_file(log / "_last_checkpoint", copy)  # it names a checkpoint that is there, and stays for hours
    last = max((version_of(name) for name in os.listdir(log)), default=-1)
    for name in sorted(os.listdir(log)):
        if name == "_boundary" or 0 <= version_of(name) <= last:
            copy_file(log / name, copy)


def version_of(name: str) -> int:
    return int(name[:20]) if name[:20].isdecimal() and name.endswith((".json", ".checkpoint.parquet")) else -1


def copy_others(table: Path, copy: Path) -> None:
    """Data files, and staged batches of transactions."""
    for folder, below, names in os.walk(table):
        below[:] = [name for name in below if name != "_delta_log"]
        to = copy / Path(folder).relative_to(table)
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            copy_file(Path(folder) / name, to)


def copy_file(file: Path, to: Path) -> None:
    """Unless it has gone meanwhile: then nothing that was copied needs it."""
    try:
        shutil.copy2(file, to)
    except FileNotFoundError:
        (to / file.name).unlink(missing_ok=True)


if __name__ == "__main__":
    copy_root(Path(sys.argv[1]), Path(sys.argv[2]))
