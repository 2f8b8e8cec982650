"""A program: `Consumer.run` with four workers, whose handlers wait in front of a gate, a file.

    python -m tests.support.processing_member ADDRESS TOPIC GROUP CLIENT_ID JOURNAL GATE

A line of the journal is `begun|done PARTITION OFFSET`, and at the end `ended_by SIGNAL HANDLED ABANDONED`. The log goes
to standard error. The session is long: whoever takes its place at once was told that this member has left.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
from pathlib import Path

from bus import Consumer, ConsumerRecord
from tests.support.journal_member import Journal

WORKERS = 4


def main(address: str, topic: str, group: str, client_id: str, path: str, gate: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    faulthandler.register(signal.SIGUSR1)
    journal = Journal(Path(path))

    def handle(record: ConsumerRecord) -> None:
        journal.note("begun", record.partition, record.offset)
        while not Path(gate).exists():
            threading.Event().wait(0.01)
        journal.note("done", record.partition, record.offset)

    consumer = Consumer(
        address, group_id=group, client_id=client_id, auto_offset_reset="earliest", session_timeout_ms=120_000
    )
    consumer.subscribe([topic])
    summary = consumer.run(handle, workers=WORKERS, drain_timeout_ms=120_000)
    journal.note("ended_by", summary.ended_by, summary.handled, summary.abandoned)


if __name__ == "__main__":
    main(*sys.argv[1:])
