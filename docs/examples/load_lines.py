"""Load the lines of a file into a topic, each exactly once, however often this program is killed and started again.

    python docs/examples/load_lines.py 127.0.0.1:9094 numbers lines.txt

Line n goes to partition n % partitions. A named producer leaves no gap in a partition, so the sequence of its last
record there tells which lines are in the log: those need not be sent again, and all others must. If a line cannot be
produced, nothing behind it in its partition is: the program stops, and its next start goes on at that line.
"""

from __future__ import annotations

import sys
from collections import deque

from bus import Producer
from bus.client.producer.batch import RecordFuture

# So many futures are kept: an error is noticed soon, and memory stays small however long the file is.
UNSETTLED_MAX = 10_000


def load(address: str, topic: str, path: str) -> int:
    """Returns how many lines this run has sent. Raises the `BusError` of the first line that failed."""
    sent = 0
    unsettled: deque[RecordFuture] = deque()
    with Producer(address, name=f"load-{topic}", linger_ms=20) as producer, open(path, "rb") as lines:
        partitions = producer.partitions_for(topic)
        there = [producer.last_sequence(topic, partition) for partition in partitions]
        done = [0 if last is None else last + 1 for last in there]  # lines of each partition that are in the log
        for number, line in enumerate(lines):
            partition, position = number % len(partitions), number // len(partitions)
            if position < done[partition]:
                continue
            unsettled.append(producer.send(topic, line.rstrip(b"\n"), partition=partition))
            sent += 1
            while len(unsettled) > UNSETTLED_MAX:
                unsettled.popleft().result()
        for future in unsettled:
            future.result()
    return sent


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: load_lines.py HOST:PORT TOPIC FILE")
    print(f"{load(*sys.argv[1:])} lines sent")
