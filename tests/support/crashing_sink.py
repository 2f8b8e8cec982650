"""A program: what the driver of a query does at the end of a batch, killed at one step of it.

    python -m tests.support.crashing_sink ADDRESS STEP VERSION

STEP is `before` or `after`, a colon, and a call of the producer; the first such call is the last thing that it does, or
does not any more. `none`: it ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bus import Producer, TopicPartition
from bus.spark.sink import transactional_batch as transactions
from bus.spark.sink.sink_options import Application, SinkOptions, parse_sink_options
from bus.spark.sink.transactional_batch import CollectedPart, commit_parts, encode_rows

STEPS = [
    f"{when}:{call}"
    for call in (
        "init_transactions",
        "begin_transaction",
        "send_batch",
        "send_offsets_to_transaction",
        "commit_transaction",
    )
    for when in ("before", "after")
]
PLACES = [TopicPartition(topic, number) for topic in ("invoices", "audit") for number in range(2)]


def options_for(address: str) -> SinkOptions:
    given = {"bus.bootstrap.servers": address, "bus.transactional": "true"}
    return parse_sink_options({**given, "bus.txnAppId": "a", "bus.txnVersion": "0"}, is_stream=False)


def parts_of(version: int, run: str) -> list[CollectedPart]:
    """One row in each place; `run` makes those of each run of a version different."""
    return [
        CollectedPart(place, encode_rows([pa.record_batch({"value": pa.array([b"%d %s" % (version, run.encode())])})]))
        for place in PLACES
    ]


def dying(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    def called(*args: Any, **configs: Any) -> Any:
        if when == "after":
            call(*args, **configs)
        os.kill(os.getpid(), signal.SIGKILL)

    return called


def main(address: str, step: str, version: str) -> None:
    if step != "none":
        when, name = step.split(":")
        setattr(transactions.Producer, name, dying(getattr(Producer, name), when))
    commit_parts(parts_of(int(version), step), options_for(address), Application("nightly", int(version)))


if __name__ == "__main__":
    main(*sys.argv[1:])
