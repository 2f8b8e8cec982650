"""Process each record at least once: the offset is committed when the work is done.

    python docs/examples/at_least_once.py 127.0.0.1:9094 orders

A crash in between has the next owner of the partition do the last batch again, so the work should not mind: an upsert,
a file that is written whole. `enable_auto_commit=True`, the default, gives the same promise with less traffic, as long
as a batch is done before the next `poll`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from bus import BusError, Consumer, ConsumerRecord, TopicPartition


def has_read(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return True if all partitions that this member has are read up to `ends`. An empty `poll` does not tell: to join
    the group may take longer."""
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(partition) >= ends.get(partition, 0) for partition in mine)


def consume(address: str, topic: str, handle: Callable[[ConsumerRecord], object]) -> int:
    """Returns how many records were handled, once what was in the topic at the beginning is done."""
    handled = 0
    with Consumer(
        address, group_id=f"{topic}-at-least-once", enable_auto_commit=False, auto_offset_reset="earliest"
    ) as c:
        c.subscribe([topic])
        ends = c.end_offsets(c.partitions_for(topic))
        while not has_read(c, ends):
            records = c.poll(1_000)
            if not records:
                continue
            for record in records:
                handle(record)
                handled += 1
            try:
                c.commit()
            except BusError as error:  # the partitions moved meanwhile: their new owner does these records again
                print(f"not committed: {error}", file=sys.stderr)
    return handled


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: at_least_once.py HOST:PORT TOPIC")
    print(f"{consume(sys.argv[1], sys.argv[2], lambda record: print(record.value))} records handled")
