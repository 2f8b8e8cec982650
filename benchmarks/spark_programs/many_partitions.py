"""One streaming query over a topic of many partitions: what a trigger costs, by the query's own progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.spark_programs.senders import sender
from benchmarks.spark_programs.session import Side, parser, print_result, running_session, sides_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Of a trigger, before its tasks: which offsets there are, and which of them it takes.
_PLANNING = ("latestOffset", "getBatch", "queryPlanning")
_WARM_UPS = 2
_TIMEOUT_S = 120


def main() -> None:
    options = parser()
    options.add_argument("--triggers", type=int, required=True)
    arguments = options.parse_args()
    with running_session(arguments) as spark:
        measured = {}
        for side in sides_of(arguments):
            triggers = _triggers(spark, side, arguments.topic, arguments.triggers, arguments.folder)
            measured[f"{side.name}.planning"] = [sum(one.get(step, 0) for step in _PLANNING) / 1e3 for one in triggers]
            measured[f"{side.name}.trigger"] = [one["triggerExecution"] / 1e3 for one in triggers]
        print_result(measured)


def _triggers(spark: SparkSession, side: Side, topic: str, triggers: int, folder: str) -> list[dict[str, int]]:
    """Milliseconds of the steps of each, a record each."""
    writer = side.stream(spark, topic, "earliest").writeStream.format("noop")
    query = writer.option("checkpointLocation", f"{folder}/{side.name}").trigger(processingTime="0 seconds").start()
    try:
        with sender(side, topic) as send:
            for number in range(_WARM_UPS + triggers):
                send(b"%d" % number)
                _wait_until_read(query, number + 1)
        return [dict(progress["durationMs"]) for progress in _with_rows(query)][_WARM_UPS:]
    finally:
        query.stop()


def _wait_until_read(query: StreamingQuery, records: int) -> None:
    started = time.monotonic()
    while sum(progress["numInputRows"] for progress in _with_rows(query)) < records:
        if time.monotonic() - started > _TIMEOUT_S:
            raise TimeoutError(f"expected {records} records within {_TIMEOUT_S} s: {query.status}")
        time.sleep(0.02)


def _with_rows(query: StreamingQuery) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


if __name__ == "__main__":
    main()
