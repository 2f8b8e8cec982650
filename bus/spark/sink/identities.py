"""Which producer a task is, and under which epoch it writes.

Guards one promise: a task that runs again, in the same attempt of a batch or in a later one, is the same producer with
the same epoch, and no other task ever is. The producer's name is made of the query and the number of the task, the
epoch is the number of the batch; epochs are 15 bits wide, so every 32,000 batches another name begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.spark.sink.options import Application

EPOCHS_PER_NAME = 32_000


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """`batch`: of a streaming query its number, of a batch write its version."""

    producer_name: str
    producer_epoch: int
    batch: int
    task: int

    @property
    def first_turn(self) -> int:
        """Where rows with neither key nor partition begin: tasks and batches take turns."""
        return self.task + self.batch


def task_identity(writer: Application, task: int) -> TaskIdentity:
    generation, epoch = divmod(writer.version, EPOCHS_PER_NAME)
    return TaskIdentity(f"spark.{writer.name}.{task}.{generation}", epoch, writer.version, task)
