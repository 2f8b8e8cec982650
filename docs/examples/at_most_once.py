"""Process each record at most once: the offset is committed before the work begins.

    python docs/examples/at_most_once.py 127.0.0.1:9094 orders

A crash between the commit and the end of the work loses what was in hand; nothing is ever done twice. Right where a
second time is worse than none: reminders, samples of a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from bus import Consumer, ConsumerRecord, TopicPartition


def has_read(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return True if all partitions that this member has are read up to `ends`. An empty `poll` does not tell: to join
    the group may take longer."""
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(partition) >= ends.get(partition, 0) for partition in mine)


def consume(address: str, topic: str, handle: Callable[[ConsumerRecord], object]) -> int:
    """Returns how many records were handled, once what was in the topic at the beginning is done. Raises `BusError`."""
    handled = 0
    with Consumer(
        address, group_id=f"{topic}-at-most-once", enable_auto_commit=False, auto_offset_reset="earliest"
    ) as c:
        c.subscribe([topic])
        ends = c.end_offsets(c.partitions_for(topic))
        while not has_read(c, ends):
            records = c.poll(1_000)
            if not records:
                continue
            c.commit()  # raises if these are another member's by now: then this one must not touch them
            for record in records:
                handle(record)
                handled += 1
    return handled


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: at_most_once.py HOST:PORT TOPIC")
    print(f"{consume(sys.argv[1], sys.argv[2], lambda record: print(record.value))} records handled")
