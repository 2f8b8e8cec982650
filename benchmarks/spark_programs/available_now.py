"""A stored topic read whole by a streaming query with AvailableNow, all columns of all rows thrown away."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.spark_programs.session import (
    Side,
    parser,
    print_result,
    root_side,
    rounds_of,
    running_session,
    sides_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S = 300


def main() -> None:
    options = parser()
    options.add_argument("--records", type=int, required=True)
    options.add_argument("--rounds", type=int, required=True)
    arguments = options.parse_args()
    with running_session(arguments) as spark:
        works = {
            side.name: partial(_drain, spark, side, arguments.topic, arguments.records, arguments.folder)
            for side in [*sides_of(arguments), root_side(arguments.root)]
        }
        print_result(rounds_of(works, arguments.rounds))


def _drain(spark: SparkSession, side: Side, topic: str, records: int, folder: str) -> None:
    """From the start of a new query until it has ended."""
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=folder)
    writer = side.stream(spark, topic, "earliest").writeStream.format("noop")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    if not query.awaitTermination(_TIMEOUT_S):
        raise TimeoutError(f"expected {side.name} to have read {topic} within {_TIMEOUT_S} s: {query.status}")
    found = sum(progress["numInputRows"] for progress in query.recentProgress)
    if found != records:
        raise ValueError(f"expected {records} records of {side.name}, found {found}")


if __name__ == "__main__":
    main()
