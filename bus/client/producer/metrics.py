"""Metrics of a producer by the names of Kafka's producer-metrics and producer-topic-metrics.

Guards one promise: a rate, an average or a maximum speaks of the recent past only: of metrics.num.samples windows of
metrics.sample.window.ms each, the present one included; a total, of the producer's whole life. Recording is for whole
batches and requests, never for records, and has no lock: its owner records under the one that it holds anyway. Reading
is safe at any time, and may miss what is being recorded just then. Time comes in as `now_ms` of one clock.

There is no record-size-max: no code looks at single records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bus.client.config.clients import ProducerConfig
from bus.client.metric_windows import Tally, Window, per_second, rates

Gauge = Callable[[float], float]  # takes the time

# Events with `<name>-rate` and `<name>-total`.
_RATES = (
    "record-send",
    "record-error",
    "record-retry",
    "batch-split",
    "request",
    "response",
    "outgoing-byte",
    "buffer-exhausted",
)
# Measurements with `<name>-avg` and `<name>-max`; times in milliseconds.
_SPREADS = ("batch-size", "record-queue-time", "request-size", "request-latency", "produce-throttle-time")
_AVERAGES = ("records-per-request", "compression-rate", "record-size")
_WAIT = "bufferpool-wait"  # milliseconds
_NAMES = (*_RATES, *_SPREADS, *_AVERAGES, _WAIT)

_TOPIC_RATES = ("record-send", "record-error", "record-retry", "byte")
_TOPIC_COMPRESSION = "compression-rate"
_TOPIC_NAMES = (*_TOPIC_RATES, _TOPIC_COMPRESSION)


class Pool(Protocol):
    @property
    def total_bytes(self) -> int: ...

    @property
    def available_bytes(self) -> int: ...


class _Queue(Protocol):
    @property
    def topic(self) -> str: ...


class _Chunk(Protocol):
    @property
    def deadline_ms(self) -> float: ...


class SentPart(Protocol):
    """One partition's share of a request. `payload`: its bytes, their codec, and how many they were before; None if
    it was not encoded."""

    @property
    def queue(self) -> _Queue: ...

    @property
    def chunks(self) -> Sequence[_Chunk]: ...

    @property
    def payload(self) -> tuple[Any, int, int] | None: ...

    @property
    def record_count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class ProducerMetrics:
    """`waiting_threads` is set by its owner, as are the gauges that only it can know."""

    def __init__(self, config: ProducerConfig, pool: Pool) -> None:
        self._pool = pool
        self._sample_ms = config.metrics_sample_window_ms
        self._sample_count = config.metrics_num_samples
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._window = Window(_NAMES, self._sample_ms, self._sample_count)
        self._topics: dict[str, Window] = {}
        self._gauges: dict[str, Gauge] = {}
        self._now_ms = 0.0  # the time of the latest event
        self.waiting_threads = 0

    # ------------------------------------------------------------ recording

    def add_gauge(self, name: str, gauge: Gauge) -> None:
        """Add a metric that is computed at each snapshot, such as `requests-in-flight` and `metadata-age`."""
        self._gauges[name] = gauge

    def record_request(self, parts: Sequence[SentPart], now_ms: float) -> None:
        """A request that was sent; a part that is sent again counts again."""
        self._now_ms = now_ms
        tallies = self._window.at(now_ms)
        request_bytes = request_records = 0
        for part in parts:
            records, record_bytes, payload = part.record_count, part.size_bytes, part.payload
            size, rate = record_bytes, 1.0
            if payload is not None:
                size = len(payload[0])
                rate = size / payload[2] if payload[2] else 1.0
            tallies["batch-size"].add(size)
            tallies["compression-rate"].add(rate)
            tallies["record-size"].add(record_bytes, records)
            # A chunk's deadline is delivery.timeout.ms after it was opened.
            queued_ms = now_ms - part.chunks[0].deadline_ms + self._delivery_timeout_ms
            tallies["record-queue-time"].add(max(0.0, queued_ms))
            of_topic = self._of_topic(part.queue.topic, now_ms)
            of_topic["record-send"].total += records
            of_topic["byte"].total += size
            of_topic[_TOPIC_COMPRESSION].add(rate)
            request_bytes += size
            request_records += records
        tallies["request"].total += 1
        tallies["record-send"].total += request_records
        tallies["outgoing-byte"].total += request_bytes
        tallies["request-size"].add(request_bytes)
        tallies["records-per-request"].add(request_records)

    def record_response(self, latency_ms: float, now_ms: float) -> None:
        self._now_ms = now_ms
        tallies = self._window.at(now_ms)
        tallies["response"].total += 1
        tallies["request-latency"].add(latency_ms)
        tallies["produce-throttle-time"].add(0)

    def record_throttle(self, throttle_time_ms: float, now_ms: float) -> None:
        """Record the throttle time of the response that was recorded last."""
        self._window.at(now_ms)["produce-throttle-time"].add(throttle_time_ms, 0)

    def record_errors(self, topic: str, records: int, now_ms: float) -> None:
        """Records that failed for good."""
        self._window.at(now_ms)["record-error"].total += records
        self._of_topic(topic, now_ms)["record-error"].total += records

    def record_retries(self, topic: str, records: int, now_ms: float) -> None:
        self._window.at(now_ms)["record-retry"].total += records
        self._of_topic(topic, now_ms)["record-retry"].total += records

    def record_split(self, now_ms: float) -> None:
        self._window.at(now_ms)["batch-split"].total += 1

    def record_pool_wait(self, duration_ms: float) -> None:
        """A thread waited for buffer.memory. It counts at the time of the latest event: the answer that made room."""
        self._window.at(self._now_ms)[_WAIT].total += duration_ms

    def record_exhausted(self, now_ms: float) -> None:
        """A thread waited in vain."""
        self._window.at(now_ms)["buffer-exhausted"].total += 1

    def _of_topic(self, topic: str, now_ms: float) -> dict[str, Tally]:
        window = self._topics.get(topic)
        if window is None:
            window = self._topics[topic] = Window(_TOPIC_NAMES, self._sample_ms, self._sample_count)
        return window.at(now_ms)

    # ------------------------------------------------------------ reading

    def snapshot(self, now_ms: float) -> dict[str, float]:
        """Name -> value; an average or a maximum of nothing is NaN, as in Kafka."""
        tallies, seconds = self._window.merged(now_ms)
        values = rates(_RATES, self._window, tallies, seconds)
        for name in _SPREADS:
            values[f"{name}-avg"], values[f"{name}-max"] = tallies[name].average, tallies[name].maximum
        for name in _AVERAGES:
            values[f"{name}-avg"] = tallies[name].average
        values["bufferpool-wait-ratio"] = per_second(tallies[_WAIT].total / 1000, seconds)
        values["bufferpool-wait-time-ns-total"] = self._window.total(_WAIT) * 1e6
        values["buffer-total-bytes"] = float(self._pool.total_bytes)
        values["buffer-available-bytes"] = float(self._pool.available_bytes)
        values["waiting-threads"] = float(self.waiting_threads)
        for name, gauge in self._gauges.items():
            values[name] = gauge(now_ms)
        return values

    def topic_snapshot(self, now_ms: float) -> dict[str, dict[str, float]]:
        """Topic -> name -> value."""
        snapshots = {}
        for topic, window in self._topics.copy().items():
            tallies, seconds = window.merged(now_ms)
            snapshots[topic] = rates(_TOPIC_RATES, window, tallies, seconds)
            snapshots[topic][_TOPIC_COMPRESSION] = tallies[_TOPIC_COMPRESSION].average
        return snapshots
