"""Findings and steps of a repair as lines for people and programs, and the quarantine for what it removes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bus.model import TopicPartition
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, ObjectStore


@dataclass(frozen=True, slots=True)
class RepairStep:
    """`action`: find, undo, quarantine, drop, bring back, give up, commit or checkpoint. Offsets are -1 where the step
    is about none."""

    action: str
    subject: str  # a file of the partition's folder, or offsets
    detail: str
    first_offset: int = -1
    last_offset: int = -1


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`steps` empty: nothing was wrong. `error`: why the table would still not open, None if it does."""

    partition: TopicPartition
    is_rehearsal: bool
    steps: Sequence[RepairStep]
    error: str | None = None

    def to_lines(self) -> bytes:
        """One JSON object a step."""
        head = {"topic": self.partition.topic, "partition": self.partition.partition, "dry_run": self.is_rehearsal}
        lines = [{**head, **asdict(step)} for step in self.steps]
        if self.error is not None:
            lines.append({**head, "action": "fail", "subject": "", "detail": self.error})
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


class Steps:
    """Gathers them in their order."""

    def __init__(self) -> None:
        self.taken: list[RepairStep] = []

    def add(self, action: str, subject: str, detail: str, offsets: tuple[int, int] | None = None) -> None:
        """`offsets`: the first, and one past the last."""
        first, last = (-1, -1) if offsets is None else (offsets[0], offsets[1] - 1)
        self.taken.append(RepairStep(action, subject, detail, first, last))


class Quarantine:
    """The quarantine, <root>/quarantine/<topic>/<partition>/... Files that are taken out of a partition's folder are
    copied there first, durably, and an earlier copy is never overwritten. Reports of repairs are there too."""

    def __init__(self, store: ObjectStore, partition: TopicPartition) -> None:
        self._store = store
        self._from = partition_folder(partition)
        self.folder = f"quarantine/{partition.topic}/{partition.partition}"

    def keep(self, name: str) -> str | None:
        """Copy `name` of the partition's folder; where to, or None if it is not there."""
        try:
            data = self._store.get(f"{self._from}/{name}")
        except KeyNotFound:
            return None
        return self.write(name, data)

    def remove(self, name: str) -> None:
        """Out of the partition's folder, once it was copied."""
        self._store.delete(f"{self._from}/{name}")

    def write(self, name: str, data: bytes) -> str:
        """Under a name that is free."""
        key, number = f"{self.folder}/{name}", 0
        while True:
            try:
                self._store.create(key, data)
                return key
            except KeyExists:
                if self._store.get(key) == data:
                    return key
                number += 1
                key = f"{self.folder}/{name}.{number}"
