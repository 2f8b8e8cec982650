"""A program: `Consumer.run` in transactions, whose handlers fail by chance.

    python -m tests.support.transactional_member ADDRESS TRANSACTIONAL_ID JOURNAL

It doubles the numbers of `orders` into `doubles`, and those that end in 7 are dead letters. SIGTERM ends it in order.
The journal says that it has begun, and nothing else.
"""

from __future__ import annotations

import faulthandler
import logging
import random
import signal
import sys
import threading
from pathlib import Path

from bus import Consumer, ConsumerRecord, Output
from tests.support.journal_member import SESSION_TIMEOUT_MS, Journal


def double(record: ConsumerRecord, output: Output) -> None:
    number = int(record.value or b"")
    output.send("doubles", b"%d" % (2 * number), record.key)
    threading.Event().wait(0.005)  # work
    if number % 10 == 7 or random.random() < 0.1:
        raise ValueError("a seven, or by chance")


def main(address: str, transactional_id: str, journal: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    faulthandler.register(signal.SIGUSR1)
    consumer = Consumer(
        address,
        group_id="doubling",
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=SESSION_TIMEOUT_MS // 5,
        max_poll_records=20,
    )
    consumer.subscribe(["orders"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # until the run takes signals itself
    Journal(Path(journal))
    consumer.run(
        double,
        stop=stop,
        transactional_id=transactional_id,
        producer_configs={"transaction_timeout_ms": 3_000},
        order="key",
        on_error=lambda record, error, attempt: "dead_letter" if int(record.value or b"") % 10 == 7 else "retry",
        retry_backoff_ms=1,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
