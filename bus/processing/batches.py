"""Records of one partition that one call of a handler gets together, as a list or as an Arrow table.

Guards one promise: a batch is one piece of work. It is done, tried again, skipped or put aside as a whole, and no
commit ends inside of it. What a table holds becomes records only where one is needed: for `on_error`, an error, a dead
letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from bus.client.consumer.records import raw_records
from bus.client.values import ConsumerRecord
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Batch:
    """Never empty. `first.offset <= last_offset`."""

    partition: TopicPartition
    first: ConsumerRecord
    last_offset: int
    count: int
    content: list[ConsumerRecord] | pa.Table  # the argument for the handler

    def records(self) -> Sequence[ConsumerRecord]:
        """The records of the batch; those of a table as they were read, with bytes."""
        if isinstance(self.content, pa.Table):
            return [record for rows in self.content.to_batches() for record in raw_records(self.partition, rows)]
        return self.content


def batches_of(records: Iterable[ConsumerRecord]) -> list[Batch]:
    """Those of each partition together, in their order."""
    by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
    for record in records:
        by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return [
        Batch(partition, some[0], some[-1].offset, len(some), some) for partition, some in by_partition.items() if some
    ]


def batches_of_table(table: pa.Table) -> list[Batch]:
    """Make a batch of each partition in a table of `poll_arrow`, each chunk of which is of one partition."""
    by_partition: dict[TopicPartition, list[pa.RecordBatch]] = {}
    for rows in table.to_batches():
        if rows.num_rows:
            partition = TopicPartition(rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py())
            by_partition.setdefault(partition, []).append(rows)
    return [_batch_of_rows(partition, some) for partition, some in by_partition.items()]


def _batch_of_rows(partition: TopicPartition, some: list[pa.RecordBatch]) -> Batch:
    (first,) = raw_records(partition, some[0].slice(0, 1))
    last_offset = int(some[-1].column("offset")[-1].as_py())
    return Batch(partition, first, last_offset, sum(rows.num_rows for rows in some), pa.Table.from_batches(some))
