"""A DataFrame that is in memory already, written into a topic by a batch query."""

from __future__ import annotations

from functools import partial

from benchmarks.spark_programs.session import parser, print_result, rounds_of, running_session, sides_of

_BYTES_OF_A_HASH = 64


def main() -> None:
    options = parser()
    options.add_argument("--records", type=int, required=True)
    options.add_argument("--value-bytes", type=int, required=True)
    options.add_argument("--keys", type=int, help="this many different ones; without it none")
    options.add_argument("--rounds", type=int, required=True)
    arguments = options.parse_args()
    with running_session(arguments) as spark:
        columns = [random_value(arguments.value_bytes)]
        if arguments.keys is not None:
            columns.append(f"cast(id % {arguments.keys} as string) AS key")
        frame = spark.range(arguments.records, numPartitions=spark.sparkContext.defaultParallelism)
        frame = frame.selectExpr(*columns).cache()
        if frame.count() != arguments.records:
            raise ValueError(f"expected {arguments.records} rows in memory, found {frame.count()}")
        works = {side.name: partial(side.write, frame, arguments.topic) for side in sides_of(arguments)}
        seconds = rounds_of(works, arguments.rounds)
        expected = arguments.records * (arguments.rounds + 1)
        for side in sides_of(arguments):
            found = side.read(spark, arguments.topic).count()
            if found != expected:
                raise ValueError(f"expected {expected} records of {side.name}, found {found}")
        print_result(seconds)


def random_value(value_bytes: int) -> str:
    """As a column: a different one each row, which cannot be made smaller."""
    hashes = -(-value_bytes // _BYTES_OF_A_HASH)
    texts = ", ".join(f"sha2(concat(id, ':{number}'), 512)" for number in range(hashes))
    return f"unhex(substr(concat({texts}), 1, {2 * value_bytes})) AS value"


if __name__ == "__main__":
    main()
