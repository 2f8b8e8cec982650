"""A process that writes transaction after transaction until it is killed, and notes in a file what it does, and what it
is told, before it goes on.

    python -m tests.support.transactional_writer JOURNAL ADDRESSES TRANSACTIONAL_ID NAME SEED PARTITIONS
"""

from __future__ import annotations

import json
import os
import random
import sys

from bus import BusError, Producer

TIMEOUT_MS = 20_000


def main(journal: str, addresses: str, transactional_id: str, name: str, seed: str, partitions: str) -> None:
    chance = random.Random(f"{seed}-{name}")
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, transaction: str, counts: dict[int, int] | None = None) -> None:
        """A process that is killed leaves what it has written."""
        os.write(file, (json.dumps([what, transaction, counts]) + "\n").encode())

    with Producer(
        addresses.split(","),
        transactional_id=transactional_id,
        transaction_timeout_ms=TIMEOUT_MS,
        max_block_ms=120_000,
        linger_ms=0,
    ) as producer:
        producer.init_transactions()
        number = 0
        while True:
            number += 1
            transaction = f"{name}.{number}"
            counts = {partition: chance.randint(1, 3) for partition in range(int(partitions)) if chance.random() < 0.6}
            note("sent", transaction, counts)
            try:
                producer.begin_transaction()
                for partition, count in counts.items():
                    for _ in range(count):
                        producer.send("accounts", f"{transaction}:{count}".encode(), partition=partition)
                if chance.random() < 0.2:
                    producer.abort_transaction()
                    note("aborted", transaction)
                else:
                    producer.commit_transaction()
                    note("committed", transaction)
            except BusError as error:
                note(f"failed: {error.code.name}", transaction)
                producer.abort_transaction()  # or it dies, and the next one goes on
                note("aborted", transaction)


if __name__ == "__main__":
    main(*sys.argv[1:])
