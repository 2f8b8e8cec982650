"""Read orders, write invoices, each order exactly once: the offsets of the input are committed with the output.

    python docs/examples/exactly_once_by_transaction.py 127.0.0.1:9094 orders invoices invoicer-0

A crash, anywhere, takes output and offsets of the open transaction back together, and so does an abort: then the
consumer goes back to what is committed. The id is that of this instance and stays the same when it is started again;
several instances, each with an id of its own, share the partitions as members of one group. An instance ends at
the offsets where the topic ended when it began.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from bus import BusError, Consumer, ConsumerRecord, ErrorCode, Producer, TopicPartition

# The instance cannot go on: another one has its id, or the coordinator has forgotten it.
_FATAL = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def has_read(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return True if all partitions that this member has are read up to `ends`. An empty `poll` does not tell: to join
    the group may take longer."""
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(partition) >= ends.get(partition, 0) for partition in mine)


def next_offsets(records: list[ConsumerRecord]) -> dict[TopicPartition, int]:
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


def go_back(consumer: Consumer) -> None:
    """To what is committed; the positions are behind records whose output was aborted."""
    partitions = consumer.assignment()
    for partition, committed in consumer.committed(partitions).items():
        if committed is None:
            consumer.seek_to_beginning([partition])
        else:
            consumer.seek(partition, committed.offset)


def commit(producer: Producer) -> None:
    """Until the outcome is known: nothing but the same call may follow a time-out."""
    while True:
        try:
            producer.commit_transaction()
            return
        except BusError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise


def process(
    address: str,
    source: str,
    target: str,
    transactional_id: str,
    work: Callable[[ConsumerRecord], bytes] = lambda record: b"invoice of " + record.value,
    **configs: Any,
) -> int:
    """Returns how many records this run has worked on, once what was in the topic at the beginning is done. `configs`
    are the consumer's. Raises `BusError` when another instance has the id."""
    done = 0
    wanted = {"group_id": f"{source}-to-{target}", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        Consumer(address, **{**wanted, **configs}) as consumer,
        Producer(address, transactional_id=transactional_id) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])
        ends = consumer.end_offsets(consumer.partitions_for(source))
        while not has_read(consumer, ends):
            records = consumer.poll(1_000)
            if not records:
                continue
            producer.begin_transaction()
            try:
                for record in records:
                    producer.send(target, work(record), key=record.key)
                producer.send_offsets_to_transaction(next_offsets(records), consumer.group_metadata())
                commit(producer)
                done += len(records)
            except BusError as error:
                if error.code in _FATAL:
                    raise
                producer.abort_transaction()
                go_back(consumer)
    return done


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: exactly_once_by_transaction.py HOST:PORT SOURCE TARGET TRANSACTIONAL_ID")
    print(f"{process(*sys.argv[1:])} records done")
