"""The demo's data is what the package has, and its data folder is the only one that it removes."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from bus.demo.__main__ import make_fresh_root
from bus.demo.flights import DATASETS, batches_of, load_records
from bus.errors import RootInUse, RootNotUsable
from bus.storage_delta.root import open_storage


def test_every_row_of_the_package_is_a_record() -> None:
    counts = {dataset.topic: load_records(dataset).num_rows for dataset in DATASETS}
    assert counts == {"flights": 336_776, "airlines": 16, "airports": 1_458, "planes": 3_322, "weather": 26_115}


def test_a_flight_is_keyed_by_carrier_and_has_the_hour_that_it_was_scheduled_for() -> None:
    first = load_records(DATASETS[0]).slice(0, 1).to_pylist()[0]
    assert first["key"] == b"UA"
    assert first["timestamp"] == datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
    value = json.loads(first["value"])
    assert (value["tailnum"], value["dep_delay"], value["time_hour"]) == ("N14228", 2, "2013-01-01T10:00:00Z")


def test_batches_cover_the_records() -> None:
    records = load_records(DATASETS[1])
    assert [batch.num_rows for batch in batches_of(records, 7)] == [7, 7, 2]


def test_a_folder_that_is_no_bus_root_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(RootNotUsable):
        make_fresh_root(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_a_root_that_is_served_is_not_touched(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), holder="broker 7")
    try:
        with pytest.raises(RootInUse, match="broker 7"):
            make_fresh_root(tmp_path)
    finally:
        storage.close()
    make_fresh_root(tmp_path)
    open_storage(str(tmp_path), create=False).close()
