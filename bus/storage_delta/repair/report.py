"""What a repair found and did, step by step, as lines for people and programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bus.model import TopicPartition


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
