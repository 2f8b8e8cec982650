from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from bus.cli.records.perf import CONSUME_HEADER, Latencies, ProduceFigures, consume_line
from bus.errors import BusError, ErrorCode

SUMMARY = re.compile(
    r"\d+ records sent, \d+\.\d records/sec \(\d+\.\d\d MB/sec\), \d+\.\d\d ms avg latency, "
    r"\d+\.\d\d ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
)


def test_percentiles_count_records_and_not_batches() -> None:
    latencies = Latencies([(100.0, 1), (1.0, 98), (50.0, 1)])
    assert latencies.average == pytest.approx(2.48)
    assert (latencies.percentile(50), latencies.percentile(98), latencies.percentile(99)) == (1.0, 1.0, 50.0)
    assert latencies.percentile(99.9) == latencies.maximum == 100.0


def test_no_samples_are_zeros() -> None:
    latencies = Latencies()
    assert (latencies.average, latencies.maximum, latencies.percentile(50)) == (0.0, 0.0, 0.0)


def test_summary_has_the_form_of_kafkas_tool() -> None:
    figures = ProduceFigures(1 << 20, started=100.0)
    figures.callback(10, 0.0)(SimpleNamespace(exception=lambda timeout: None))
    assert SUMMARY.fullmatch(figures.summary(102.0))
    assert figures.summary(102.0).startswith("10 records sent, 5.0 records/sec (5.00 MB/sec), ")


def test_window_counts_what_came_since_the_last_one() -> None:
    figures = ProduceFigures(100, started=100.0)
    acknowledge = figures.callback(10, 0.0)
    acknowledge(SimpleNamespace(exception=lambda timeout: None))
    assert figures.window(105.0).startswith("10 records sent, 2.0 records/sec")
    acknowledge(SimpleNamespace(exception=lambda timeout: None))
    assert figures.window(110.0).startswith("10 records sent, 2.0 records/sec")
    assert figures.summary(110.0).startswith("20 records sent, 2.0 records/sec")


def test_failed_batch_ends_the_measurement_and_counts_nothing() -> None:
    figures = ProduceFigures(100, started=100.0)
    error = BusError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
    figures.callback(10, 0.0)(SimpleNamespace(exception=lambda timeout: error))
    with pytest.raises(BusError, match="MESSAGE_TOO_LARGE"):
        figures.raise_failure()
    assert figures.summary(101.0).startswith("0 records sent")


def test_consume_line_has_a_cell_for_each_of_kafkas_headers() -> None:
    cells = consume_line(1_000.5, 1_002.5, 1000, 10 << 20).split(", ")
    assert len(cells) == len(CONSUME_HEADER.split(", "))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:500", cells[0])
    assert cells[2:] == ["10.0000", "5.0000", "1000", "500.0000", "0", "2000", "5.0000", "500.0000"]
