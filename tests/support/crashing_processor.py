"""A program: `Consumer.run` with a transactional id, that kills itself at one step of its second transaction.

    python -m tests.support.crashing_processor ADDRESS STEP

It doubles the numbers of `orders` into `doubles`, by the parity of the number, and puts those that end in 7 aside.
STEP is `before` or `after`, a colon, and a call of the producer; or `none`: then it goes on until it is asked to end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from bus import Consumer, ConsumerRecord, Output, Producer
from bus.processing import transactional_output as transactions

STEPS = [
    f"{when}:{call}"
    for call in ("begin_transaction", "send", "send_offsets_to_transaction", "commit_transaction")
    for when in ("before", "after")
]


def double(record: ConsumerRecord, output: Output) -> None:
    number = int(record.value or b"")
    output.send("doubles", b"%d" % (2 * number), partition=number % 2)
    if number % 10 == 7:
        raise ValueError("a seven")


def dying(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    """After one whole transaction, the first such call is the last thing that it does, or does not any more."""

    def called(self: DyingProducer, *args: Any, **configs: Any) -> Any:
        if self.has_committed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        is_second = self.has_committed
        found = call(self, *args, **configs)
        if is_second:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return called


class DyingProducer(Producer):
    has_committed = False

    def commit_transaction(self) -> Any:
        rows = super().commit_transaction()
        self.has_committed = True
        return rows


def main(address: str, step: str) -> None:
    if step != "none":
        when, name = step.split(":")
        setattr(DyingProducer, name, dying(getattr(DyingProducer, name), when))
        transactions.Producer = DyingProducer  # type: ignore[misc]
    consumer = Consumer(
        address, group_id="doubling", group_instance_id="doubler", auto_offset_reset="earliest", max_poll_records=10
    )
    consumer.subscribe(["orders"])
    consumer.run(double, transactional_id="doubler", on_error="dead_letter", workers=2, queued_records_max=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
