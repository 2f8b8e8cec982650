"""Count words exactly once: the offset is stored beside the result, in the same transaction.

    python docs/examples/exactly_once_by_stored_offset.py 127.0.0.1:9094 words counts.db

What the database holds is always the result of a whole number of records, and it knows which: a crash takes the result
and the offset back together. The group only spreads the partitions; its committed offsets are not used. All members
share the database. While partitions move, two members may have the same records in hand: the one that comes second
finds that the offset in the database is past its own, drops its batch, and goes on from there.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from typing import Any

from bus import Consumer, ConsumerRecord, TopicPartition

_TABLES = """
create table if not exists counts (word text primary key, count integer not null);
create table if not exists progress (topic text, partition integer, next_offset integer not null,
                                     primary key (topic, partition));
"""


def has_read(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return True if all partitions that this member has are read up to `ends`. An empty `poll` does not tell: to join
    the group may take longer."""
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(partition) >= ends.get(partition, 0) for partition in mine)


def stored_offset(database: sqlite3.Connection, partition: TopicPartition) -> int:
    query = "select next_offset from progress where topic = ? and partition = ?"
    row = database.execute(query, (partition.topic, partition.partition)).fetchone()
    return 0 if row is None else int(row[0])


def store(database: sqlite3.Connection, partition: TopicPartition, records: list[ConsumerRecord]) -> int:
    """Count the words of `records` and move the offset, both or neither. Returns how many were counted."""
    with database:  # one transaction
        database.execute("begin immediate")
        if stored_offset(database, partition) > records[0].offset:
            return 0  # another member was here
        for record in records:
            upsert = "insert into counts values (?, 1) on conflict (word) do update set count = count + 1"
            database.execute(upsert, (record.value.decode(),))
        upsert = "insert or replace into progress values (?, ?, ?)"
        database.execute(upsert, (partition.topic, partition.partition, records[-1].offset + 1))
    return len(records)


def count(address: str, topic: str, path: str, is_following: bool = False, **configs: Any) -> int:
    """Returns how many records this run has counted, once what was in the topic at the beginning is done; never, if it
    `is_following` the topic. `configs` are the consumer's. Raises `BusError`."""
    counted = 0
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.executescript(_TABLES)
    wanted = {"group_id": f"{topic}-counter", "auto_offset_reset": "earliest", "enable_auto_commit": False, **configs}
    with Consumer(address, **wanted) as c:

        def begin_where_the_database_is(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                c.seek(partition, stored_offset(database, partition))

        c.subscribe([topic], on_assigned=begin_where_the_database_is)
        ends = c.end_offsets(c.partitions_for(topic))
        while is_following or not has_read(c, ends):
            by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
            for record in c.poll(1_000):
                by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            for partition, batch in by_partition.items():
                stored = store(database, partition, batch)
                counted += stored
                if not stored:
                    c.seek(partition, stored_offset(database, partition))
    database.close()
    return counted


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: exactly_once_by_stored_offset.py HOST:PORT TOPIC DATABASE")
    print(f"{count(*sys.argv[1:])} records counted")
