"""A program: a member of a group that notes in a journal of its own what it was given and what it did, then commits.

    python -m tests.support.journal_member ADDRESS TOPIC GROUP CLIENT_ID JOURNAL

A line of the journal is `assigned|revoked|lost PARTITION` or `PARTITION OFFSET VALUE`, written by one call: whoever
kills the program leaves whole lines. SIGTERM ends it in order. What a consumer has to bear it bears; any other error
ends it with a code that the test sees.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bus import BusError, Consumer, ConsumerRecord, TopicPartition
from bus.errors import ErrorCode

SESSION_TIMEOUT_MS = 1_000

# The partitions may be another member's, or the outcome is not known: the records come again, here or there.
_MOVED = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.is_empty = True

    def note(self, *words: object) -> None:
        self.is_empty = False
        os.write(self._file, " ".join(map(str, words)).encode() + b"\n")

    def noting(self, event: str) -> Callable[[list[TopicPartition]], None]:
        def note_all(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                self.note(event, partition.partition)

        return note_all


def poll(consumer: Consumer, journal: Journal) -> list[ConsumerRecord]:
    try:
        return consumer.poll(500)
    except BusError as error:
        if error.code is not ErrorCode.NETWORK_EXCEPTION or not journal.is_empty:
            raise
        return []  # it was started while the broker was down: a consumer tells that, once it was there it only waits


def main(address: str, topic: str, group: str, client_id: str, path: str) -> None:
    is_over: list[bool] = []
    consumer = Consumer(
        address,
        group_id=group,
        client_id=client_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy="cooperative-sticky",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=200,
        max_poll_interval_ms=30_000,
        max_poll_records=100,
    )

    def end(number: int, frame: object) -> None:
        is_over.append(True)
        consumer.wakeup()

    signal.signal(signal.SIGTERM, end)
    faulthandler.register(signal.SIGUSR1)
    journal = Journal(Path(path))  # from here on it can be asked to end
    consumer.subscribe(
        [topic],
        on_assigned=journal.noting("assigned"),
        on_revoked=journal.noting("revoked"),
        on_lost=journal.noting("lost"),
    )
    while not is_over:
        for record in poll(consumer, journal):
            journal.note(record.partition, record.offset, record.value.decode())
        try:
            consumer.commit()  # what a rebalance keeps from being committed is committed soon
        except BusError as error:
            if error.code not in _MOVED:
                raise
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
