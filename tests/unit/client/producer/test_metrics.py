from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.producer.metrics import ProducerMetrics

DELIVERY_TIMEOUT_MS = 120_000


@dataclass
class Pool:
    total_bytes: int = 1_000
    available_bytes: int = 1_000


@dataclass
class Queue:
    topic: str


@dataclass
class Chunk:
    deadline_ms: float


@dataclass
class Part:
    """`size_bytes` of records that were taken in at `made_at_ms`, of which the wire carries `wire_bytes`."""

    topic: str
    record_count: int
    size_bytes: int
    made_at_ms: float = 0.0
    wire_bytes: int | None = None
    uncompressed_bytes: int = 0
    queue: Queue = field(init=False)
    chunks: list[Chunk] = field(init=False)
    payload: tuple[Any, int, int] | None = None

    def __post_init__(self) -> None:
        self.queue = Queue(self.topic)
        self.chunks = [Chunk(self.made_at_ms + DELIVERY_TIMEOUT_MS)]
        if self.wire_bytes is not None:
            self.payload = (b"x" * self.wire_bytes, 0, self.uncompressed_bytes)


def metrics_of(pool: Pool | None = None, *, num_samples: int = 2) -> ProducerMetrics:
    config = ProducerConfig(metrics_sample_window_ms=30_000, metrics_num_samples=num_samples)
    return ProducerMetrics(config, pool or Pool())


def test_nothing_recorded_is_zero_and_averages_of_nothing_are_not_a_number() -> None:
    values = metrics_of().snapshot(5_000)
    assert values["record-send-rate"] == values["record-send-total"] == values["bufferpool-wait-ratio"] == 0
    for name in ("batch-size-avg", "batch-size-max", "request-latency-avg", "compression-rate-avg", "record-size-avg"):
        assert math.isnan(values[name]), name
    assert metrics_of().topic_snapshot(5_000) == {}


def test_names_are_kafkas() -> None:
    names = set(metrics_of().snapshot(0))
    assert names >= {
        "record-send-rate", "record-send-total", "record-error-rate", "record-error-total", "record-retry-rate",
        "record-retry-total", "records-per-request-avg", "record-size-avg", "record-queue-time-avg",
        "record-queue-time-max", "batch-size-avg", "batch-size-max", "batch-split-rate", "batch-split-total",
        "compression-rate-avg", "request-latency-avg", "request-latency-max", "request-rate", "request-total",
        "request-size-avg", "request-size-max", "response-rate", "response-total", "outgoing-byte-rate",
        "outgoing-byte-total", "bufferpool-wait-time-ns-total", "bufferpool-wait-ratio", "buffer-exhausted-rate",
        "buffer-exhausted-total", "buffer-total-bytes", "buffer-available-bytes", "waiting-threads",
        "produce-throttle-time-avg", "produce-throttle-time-max",
    }  # fmt: skip


def test_request_is_measured_by_batch_and_as_a_whole() -> None:
    metrics = metrics_of()
    parts = [
        Part("a", 10, 1_000, made_at_ms=99_990, wire_bytes=400, uncompressed_bytes=800),
        Part("b", 30, 3_000, made_at_ms=99_970, wire_bytes=1_000, uncompressed_bytes=1_000),
    ]
    metrics.record_request(parts, 100_000)
    metrics.record_request([Part("a", 2, 200, made_at_ms=100_000, wire_bytes=100, uncompressed_bytes=100)], 100_000)
    values = metrics.snapshot(100_000)
    assert (values["record-send-total"], values["request-total"], values["outgoing-byte-total"]) == (42, 2, 1_500)
    assert (values["batch-size-avg"], values["batch-size-max"]) == (500, 1_000)
    assert (values["request-size-avg"], values["request-size-max"]) == (750, 1_400)
    assert values["records-per-request-avg"] == 21
    assert values["record-size-avg"] == 100
    assert values["record-queue-time-avg"] == pytest.approx((10 + 30 + 0) / 3)
    assert values["record-queue-time-max"] == pytest.approx(30)
    assert values["compression-rate-avg"] == pytest.approx((0.5 + 1 + 1) / 3)


def test_part_that_nobody_encoded_counts_with_the_bytes_of_its_records() -> None:
    metrics = metrics_of()
    metrics.record_request([Part("a", 10, 1_000)], 1_000)
    values = metrics.snapshot(1_000)
    assert (values["batch-size-avg"], values["compression-rate-avg"]) == (1_000, 1)


def test_topics_are_counted_apart() -> None:
    metrics = metrics_of()
    metrics.record_request(
        [Part("a", 10, 0, wire_bytes=50, uncompressed_bytes=100), Part("b", 3, 0, wire_bytes=9, uncompressed_bytes=9)],
        0.0,
    )
    metrics.record_retries("a", 10, 0)
    metrics.record_errors("b", 3, 0)
    a, b = (metrics.topic_snapshot(60_000 - 1e-3)[topic] for topic in ("a", "b"))
    assert (a["record-send-total"], a["byte-total"], a["compression-rate"]) == (10, 50, 0.5)
    assert (a["record-retry-total"], a["record-error-total"]) == (10, 0)
    assert (b["record-send-total"], b["record-retry-total"], b["record-error-total"]) == (3, 0, 3)
    assert a["byte-rate"] == pytest.approx(50 / 60)
    values = metrics.snapshot(0)
    assert (values["record-retry-total"], values["record-error-total"]) == (10, 3)


def test_rate_is_over_one_window_at_least() -> None:
    # Kafka's Rate: one event of a new producer is not as many a second as the clock's resolution makes it.
    metrics = metrics_of()
    metrics.record_errors("t", 60, 0)
    assert metrics.snapshot(0)["record-error-rate"] == pytest.approx(60 / 30)
    assert metrics.snapshot(15_000)["record-error-rate"] == pytest.approx(60 / 45)
    assert metrics.snapshot(30_000)["record-error-rate"] == pytest.approx(60 / 30)
    assert metrics.snapshot(45_000)["record-error-rate"] == pytest.approx(60 / 45)


def test_steady_rate_is_the_rate() -> None:
    metrics = metrics_of()
    for second in range(600):
        metrics.record_errors("t", 7, second * 1_000)
    assert metrics.snapshot(600_000)["record-error-rate"] == pytest.approx(7, rel=0.02)
    assert metrics.snapshot(600_000)["record-error-total"] == 4_200


def test_what_is_older_than_all_windows_is_forgotten_but_for_the_totals() -> None:
    metrics = metrics_of()
    metrics.record_response(500, 0)
    metrics.record_response(100, 31_000)
    assert metrics.snapshot(59_000)["request-latency-max"] == pytest.approx(500)
    assert metrics.snapshot(60_000)["request-latency-max"] == pytest.approx(100)
    values = metrics.snapshot(91_000)
    assert math.isnan(values["request-latency-max"])
    assert (values["response-rate"], values["response-total"]) == (0, 2)


def test_a_sample_of_the_present_replaces_the_oldest() -> None:
    metrics = metrics_of()
    for at, latency_ms in ((0, 900), (30_000, 200), (59_900, 300), (60_000, 100)):
        metrics.record_response(latency_ms, at)
    assert metrics.snapshot(60_000)["request-latency-max"] == pytest.approx(300)
    assert metrics.snapshot(60_000)["request-latency-avg"] == pytest.approx(200)


def test_one_sample_is_the_present_window_only() -> None:
    metrics = metrics_of(num_samples=1)
    metrics.record_response(900, 0)
    metrics.record_response(100, 30_000)
    values = metrics.snapshot(40_000)
    assert (values["request-latency-max"], values["response-rate"]) == (pytest.approx(100), pytest.approx(1 / 10))


def test_throttle_time_is_averaged_over_all_responses() -> None:
    metrics = metrics_of()
    metrics.record_response(10, 1_000)
    assert metrics.snapshot(1_000)["produce-throttle-time-max"] == 0
    metrics.record_response(10, 2_000)
    metrics.record_throttle(200, 2_000)
    values = metrics.snapshot(2_000)
    assert (values["produce-throttle-time-avg"], values["produce-throttle-time-max"]) == (100, 200)


def test_waiting_for_memory_shows_as_time_share_and_failures() -> None:
    pool = Pool()
    metrics = metrics_of(pool)
    metrics.record_response(10, 100_000)
    metrics.record_pool_wait(3_000)
    metrics.record_exhausted(100_000)
    pool.available_bytes, metrics.waiting_threads = 24, 2
    values = metrics.snapshot(100_000)
    assert values["bufferpool-wait-time-ns-total"] == 3e9
    assert values["bufferpool-wait-ratio"] == pytest.approx(3 / 30)
    assert values["buffer-exhausted-total"] == 1
    assert (values["buffer-total-bytes"], values["buffer-available-bytes"], values["waiting-threads"]) == (1_000, 24, 2)
    assert metrics.snapshot(160_000)["bufferpool-wait-ratio"] == 0


def test_splits_are_counted() -> None:
    metrics = metrics_of()
    metrics.record_split(1_000)
    values = metrics.snapshot(1_000)
    assert (values["batch-split-total"], values["batch-split-rate"]) == (1, pytest.approx(1 / 30))


def test_gauges_are_asked_at_the_time_of_the_snapshot() -> None:
    metrics = metrics_of()
    metrics.add_gauge("metadata-age", lambda now_ms: now_ms - 40_000)
    assert metrics.snapshot(42_000)["metadata-age"] == 2_000


def test_reading_changes_nothing() -> None:
    metrics = metrics_of()
    metrics.record_errors("t", 1, 0)
    assert metrics.snapshot(1_000_000)["record-error-rate"] == 0
    assert metrics.snapshot(0)["record-error-rate"] > 0
