"""One client's consumption of stored records as Python objects, in a process of its own: prints records a second.

The same loop on both sides: every record is looked at (its value's length), from the first one on, without a group.
confluent-kafka is asked for as many messages at a time as `poll` of the bus gives (500).
"""

from __future__ import annotations

import argparse
import json
import sys
import time

_POLL_RECORDS = 500


def consume_bus(address: str, topic: str, partitions: int, records: int) -> tuple[int, float]:
    from bus import Consumer, TopicPartition

    with Consumer(address, auto_offset_reset="earliest", max_poll_records=_POLL_RECORDS) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        count = size = 0
        started = time.perf_counter()
        while count < records:
            for record in consumer.poll(timeout_ms=10_000):
                size += len(record.value)
                count += 1
        return size, time.perf_counter() - started


def consume_confluent(address: str, topic: str, partitions: int, records: int) -> tuple[int, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        count = size = 0
        started = time.perf_counter()
        while count < records:
            for message in consumer.consume(_POLL_RECORDS, timeout=10.0):
                if message.error():
                    raise RuntimeError(str(message.error()))
                size += len(message.value())
                count += 1
        return size, time.perf_counter() - started
    finally:
        consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=["bus", "confluent"], required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    arguments = parser.parse_args()
    consume = consume_bus if arguments.peer == "bus" else consume_confluent
    size, elapsed = consume(arguments.address, arguments.topic, arguments.partitions, arguments.records)
    if not size:
        raise RuntimeError("expected values with bytes, found none")
    print(json.dumps({"records_per_second": arguments.records / elapsed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
