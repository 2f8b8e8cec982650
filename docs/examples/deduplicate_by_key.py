"""Do the work of each outside key once within a time: a payment that its sender repeats under the same id, for example.

    python docs/examples/deduplicate_by_key.py 127.0.0.1:9094 payments seen.db

A producer's idempotence knows its own repeats; it cannot know that two calls of `send()` mean the same thing. The key
of the record does. The keys that were seen, the offset and the result are in one transaction of the database, so a
crash takes all of them back together. A key expires `window_ms` of the records' own time after it was accepted: the
clock of a machine decides nothing, and a partition that is read again gives the same result. Records of one key are in
one partition, so the members of a group need to agree about nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping

from bus import Consumer, ConsumerRecord, ConsumerSettings, TopicPartition

DAY_MS = 86_400_000
_TABLES = """
create table if not exists seen (topic text, partition integer, key blob, timestamp_ms integer not null,
                                 primary key (topic, partition, key));
create index if not exists seen_by_time on seen (topic, partition, timestamp_ms);
create table if not exists progress (topic text, partition integer, next_offset integer not null,
                                     primary key (topic, partition));
"""
Work = Callable[[sqlite3.Connection, ConsumerRecord], object]


def stored_offset(database: sqlite3.Connection, partition: TopicPartition) -> int:
    query = "select next_offset from progress where topic = ? and partition = ?"
    row = database.execute(query, (partition.topic, partition.partition)).fetchone()
    return 0 if row is None else int(row[0])


def take(database: sqlite3.Connection, record: ConsumerRecord, work: Work, window_ms: int) -> bool:
    """Return True if the record was worked on: it is new, and so is its key for `window_ms`. All or nothing is
    stored."""
    place = (record.topic, record.partition)
    with database:  # one transaction
        database.execute("begin immediate")
        if stored_offset(database, TopicPartition(*place)) > record.offset:
            return False
        database.execute(
            "delete from seen where topic = ? and partition = ? and timestamp_ms <= ?",
            (*place, record.timestamp_ms - window_ms),
        )
        insert = "insert or ignore into seen values (?, ?, ?, ?)"
        is_new = database.execute(insert, (*place, record.key, record.timestamp_ms)).rowcount == 1
        if is_new:
            work(database, record)
        database.execute("insert or replace into progress values (?, ?, ?)", (*place, record.offset + 1))
    return is_new


def has_read(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(partition) >= ends.get(partition, 0) for partition in mine)


def process(address: str, topic: str, path: str, work: Work, window_ms: int = DAY_MS) -> int:
    """Returns how many records were worked on, once what was in the topic at the beginning is read."""
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.executescript(_TABLES)
    done = 0
    configs: ConsumerSettings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(address, group_id=f"{topic}-once", **configs) as consumer:

        def begin_where_the_database_is(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, stored_offset(database, partition))

        consumer.subscribe([topic], on_assigned=begin_where_the_database_is)
        ends = consumer.end_offsets(consumer.partitions_for(topic))
        while not has_read(consumer, ends):
            done += sum(take(database, record, work, window_ms) for record in consumer.poll(1_000))
    database.close()
    return done


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: deduplicate_by_key.py HOST:PORT TOPIC DATABASE")
    print(f"{process(*sys.argv[1:], lambda _, record: print(record.key))} records worked on")
