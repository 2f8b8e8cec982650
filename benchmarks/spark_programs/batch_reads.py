"""A stored topic read whole by a batch query: counted and measured, and all columns of all rows thrown away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import bus.spark
from benchmarks.spark_programs.session import parser, print_result, root_side, rounds_of, running_session, sides_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    options = parser()
    options.add_argument("--records", type=int, required=True)
    options.add_argument("--value-bytes", type=int, required=True)
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--readings", default="bus,kafka,root,native", help="which, separated by commas")
    arguments = options.parse_args()
    expected = (arguments.records, arguments.records * arguments.value_bytes)
    with running_session(arguments) as spark:
        # Opened within each run, as a job does: where the log ends is asked for then.
        frames = {
            side.name: partial(side.read, spark, arguments.topic)
            for side in [*sides_of(arguments), root_side(arguments.root)]
        }
        frames["native"] = partial(bus.spark.read_topic, spark, arguments.root, arguments.topic)
        wanted = arguments.readings.split(",")
        works = {}
        for name, frame in ((name, frame) for name, frame in frames.items() if name in wanted):
            works[f"{name}.sum"] = partial(_sum, frame, expected)
            works[f"{name}.all"] = partial(_read_all, frame)
        print_result(rounds_of(works, arguments.rounds))


def _sum(frame: partial[DataFrame], expected: tuple[int, int]) -> None:
    """What a query over values does; it also tells whether all records are there."""
    from pyspark.sql import functions as sql

    (row,) = frame().agg(sql.count("*"), sql.sum(sql.length("value"))).collect()
    if tuple(row) != expected:
        raise ValueError(f"expected {expected} records and bytes, found {tuple(row)}")


def _read_all(frame: partial[DataFrame]) -> None:
    frame().write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
