"""Metrics of a consumer by the names of Kafka's consumer-metrics, consumer-coordinator-metrics and
consumer-fetch-manager-metrics.

Guards one promise: a number means what Kafka's of that name means. Recording is for calls and fetches; a record that is
given out costs one addition. The caller of what records holds the fetcher's lock, but for calls of the user's thread.
Bytes are counted as they were fetched, records as they are given out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from bus.client.config.clients import ConsumerConfig
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.metric_windows import Tally, Window, rates
from bus.model import TopicPartition

Gauge = Callable[[float], float]

# Events with `<name>-rate` and `<name>-total`.
_RATES = ("fetch", "bytes-consumed", "records-consumed", "commit", "heartbeat", "join", "sync")
# Rare events with `<name>-rate-per-hour` and `<name>-total`.
_HOURLY = ("rebalance", "failed-rebalance")
# Measurements with `<name>-avg` and `<name>-max`, in milliseconds or bytes.
_SPREADS = (
    "fetch-latency",
    "fetch-size",
    "fetch-throttle-time",
    "commit-latency",
    "join-time",
    "sync-time",
    "rebalance-latency",
    "partition-assigned-latency",
    "partition-revoked-latency",
    "partition-lost-latency",
    "time-between-poll",
)
_AVERAGES = ("records-per-request", "poll-idle-ratio")
_HEARTBEAT = "heartbeat-response-time"
_CALLS = {
    "Heartbeat": ("heartbeat", _HEARTBEAT),
    "JoinGroup": ("join", "join-time"),
    "SyncGroup": ("sync", "sync-time"),
}
_NS = ("commit-sync-time", "committed-time")  # have `<name>-ns-total`
_NAMES = (*_RATES, *_HOURLY, *_SPREADS, *_AVERAGES, _HEARTBEAT, *_NS)

_TOPIC_RATES = ("bytes-consumed", "records-consumed")
_TOPIC_NAMES = (*_TOPIC_RATES, "fetch-size", "records-per-request")
_PARTITION_NAMES = ("records-lag", "records-lead")


class ConsumerMetrics:
    def __init__(self, config: ConsumerConfig, assigned: Callable[[], list[AssignedPartition]]) -> None:
        self._sample_ms = config.metrics_sample_window_ms
        self._sample_count = config.metrics_num_samples
        self._assigned = assigned
        self._window = self._new_window(_NAMES)
        self._topics: dict[str, Window] = {}
        self._partitions: dict[TopicPartition, Window] = {}
        self._given: dict[str, int] = {}  # records since the last poll, by topic
        self._gauges: dict[str, Gauge] = {}
        self._poll_began_at_ms = self._poll_ended_at_ms = math.nan
        self._rebalanced_at_ms = math.nan
        self.last_poll_at_ms = math.nan

    def _new_window(self, names: tuple[str, ...]) -> Window:
        return Window(names, self._sample_ms, self._sample_count)

    # ------------------------------------------------------------ recording

    def add_gauge(self, name: str, gauge: Gauge) -> None:
        """`gauge` gets the time at which it is read."""
        self._gauges[name] = gauge

    def count_given(self, topic: str, records: int) -> None:
        self._given[topic] = self._given.get(topic, 0) + records

    def begin_poll(self, now_ms: float) -> None:
        tallies = self._window.at(now_ms)
        between_ms = now_ms - self._poll_began_at_ms
        if between_ms > 0:
            tallies["time-between-poll"].add(between_ms)
            tallies["poll-idle-ratio"].add((self._poll_ended_at_ms - self._poll_began_at_ms) / between_ms)
        self._poll_began_at_ms = self._poll_ended_at_ms = now_ms
        given, self._given = self._given, {}
        for topic, records in given.items():
            tallies["records-consumed"].total += records
            self._of_topic(topic, now_ms)["records-consumed"].total += records

    def end_poll(self, now_ms: float) -> None:
        self._poll_ended_at_ms = now_ms
        assigned = self._assigned()
        if len(self._partitions) > len(assigned):
            for gone in self._partitions.keys() - {partition.partition for partition in assigned}:
                del self._partitions[gone]

    def record_position(self, partition: AssignedPartition, now_ms: float) -> None:
        """Record the position of a partition whose records a poll has returned."""
        window = self._partitions.get(partition.partition)
        if window is None:
            window = self._partitions[partition.partition] = self._new_window(_PARTITION_NAMES)
        tallies = window.at(now_ms)
        tallies["records-lag"].add(_lag(partition))
        tallies["records-lead"].add(-_lead(partition))  # the largest of these is the least lead

    def record_fetch(
        self, sizes: Mapping[str, tuple[int, int]], latency_ms: float, throttle_ms: int, now_ms: float
    ) -> None:
        """One answer: bytes and records by topic."""
        tallies = self._window.at(now_ms)
        tallies["fetch"].total += 1
        tallies["fetch-latency"].add(latency_ms)
        tallies["fetch-throttle-time"].add(throttle_ms)
        tallies["fetch-size"].add(sum(size for size, _ in sizes.values()))
        tallies["records-per-request"].add(sum(records for _, records in sizes.values()))
        tallies["bytes-consumed"].total += sum(size for size, _ in sizes.values())
        for topic, (size, records) in sizes.items():
            of_topic = self._of_topic(topic, now_ms)
            of_topic["bytes-consumed"].total += size
            of_topic["fetch-size"].add(size)
            of_topic["records-per-request"].add(records)

    def record_commit(self, latency_ms: float, now_ms: float) -> None:
        """From the call to the coordinator's answer."""
        tallies = self._window.at(now_ms)
        tallies["commit"].total += 1
        tallies["commit-latency"].add(latency_ms)

    def record_group_call(self, method: str, latency_ms: float, now_ms: float) -> None:
        """A heartbeat, a join or a sync that was answered."""
        if method in _CALLS:
            count, duration = _CALLS[method]
            tallies = self._window.at(now_ms)
            tallies[count].total += 1
            tallies[duration].add(latency_ms)

    def record_rebalance(self, duration_ms: float | None, now_ms: float) -> None:
        """From the first join to the assignment; None: it failed."""
        tallies = self._window.at(now_ms)
        if duration_ms is None:
            tallies["failed-rebalance"].total += 1
        else:
            tallies["rebalance"].total += 1
            tallies["rebalance-latency"].add(duration_ms)
            self._rebalanced_at_ms = now_ms

    def record_callback(self, kind: str, duration_ms: float, now_ms: float) -> None:
        """`kind`: assigned, revoked or lost."""
        self._window.at(now_ms)[f"partition-{kind}-latency"].add(duration_ms)

    def record_waiting(self, name: str, duration_ms: float, now_ms: float) -> None:
        """`name`: commit-sync-time or committed-time."""
        self._window.at(now_ms)[name].total += duration_ms

    def _of_topic(self, topic: str, now_ms: float) -> dict[str, Tally]:
        window = self._topics.get(topic)
        if window is None:
            window = self._topics[topic] = self._new_window(_TOPIC_NAMES)
        return window.at(now_ms)

    # ------------------------------------------------------------ reading

    def snapshot(self, now_ms: float) -> dict[str, float]:
        """Name -> value; an average or a maximum of nothing is NaN, as in Kafka. With the lag and the lead of each
        partition, as `orders-0.records-lag`."""
        tallies, seconds = self._window.merged(now_ms)
        values = rates(_RATES, self._window, tallies, seconds)
        values["records-consumed-total"] += sum(self._given.copy().values())
        for name, hourly in rates(_HOURLY, self._window, tallies, seconds).items():
            is_rate = name.endswith("-rate")
            values[f"{name}-per-hour" if is_rate else name] = hourly * 3600 if is_rate else hourly
        for name in _SPREADS:
            values[f"{name}-avg"], values[f"{name}-max"] = tallies[name].average, tallies[name].maximum
        for name in _AVERAGES:
            values[f"{name}-avg"] = tallies[name].average
        values[f"{_HEARTBEAT}-max"] = tallies[_HEARTBEAT].maximum
        values["rebalance-latency-total"] = self._window.total("rebalance-latency")
        for name in _NS:
            values[f"{name}-ns-total"] = self._window.total(name) * 1e6
        values["last-poll-seconds-ago"] = (now_ms - self.last_poll_at_ms) / 1000
        values["last-rebalance-seconds-ago"] = (now_ms - self._rebalanced_at_ms) / 1000
        return values | self._positions() | {name: gauge(now_ms) for name, gauge in self._gauges.items()}

    def _positions(self) -> dict[str, float]:
        assigned = self._assigned()
        known = [each for each in assigned if each.position is not None and each.high_watermark is not None]
        values = {f"{each.partition}.records-lag": float(_lag(each)) for each in known}
        values |= {f"{each.partition}.records-lead": float(_lead(each)) for each in known}
        values["records-lag-max"] = float(max(map(_lag, known), default=math.nan))
        values["records-lead-min"] = float(min(map(_lead, known), default=math.nan))
        values["assigned-partitions"] = float(len(assigned))
        return values

    def topic_snapshot(self, now_ms: float) -> dict[str, dict[str, float]]:
        """Topic -> name -> value."""
        snapshots = {}
        given = self._given.copy()
        for topic, window in self._topics.copy().items():
            tallies, seconds = window.merged(now_ms)
            values = snapshots[topic] = rates(_TOPIC_RATES, window, tallies, seconds)
            values["records-consumed-total"] += given.get(topic, 0)
            values["fetch-size-avg"] = tallies["fetch-size"].average
            values["fetch-size-max"] = tallies["fetch-size"].maximum
            values["records-per-request-avg"] = tallies["records-per-request"].average
        return snapshots

    def partition_snapshot(self, now_ms: float) -> dict[TopicPartition, dict[str, float]]:
        """Partition -> name -> value, of those that are assigned; lag and lead as they are now, and as they were after
        polls of the recent past."""
        snapshots = {}
        for partition in self._assigned():
            is_known = partition.position is not None and partition.high_watermark is not None
            window = self._partitions.get(partition.partition) or self._new_window(_PARTITION_NAMES)
            tallies, _ = window.merged(now_ms)
            lags, leads = tallies["records-lag"], tallies["records-lead"]
            snapshots[partition.partition] = {
                "records-lag": float(_lag(partition)) if is_known else math.nan,
                "records-lag-avg": lags.average,
                "records-lag-max": lags.maximum,
                "records-lead": float(_lead(partition)) if is_known else math.nan,
                "records-lead-avg": -leads.average,
                "records-lead-min": -leads.maximum,
                "preferred-read-replica": float(
                    -1 if (replica := partition.read_replica.at(now_ms)) is None else replica
                ),
            }
        return snapshots


def _lag(partition: AssignedPartition) -> int:
    """How far it is behind the end of the log, as the last fetch saw it."""
    return max(0, (partition.high_watermark or 0) - (partition.position or 0))


def _lead(partition: AssignedPartition) -> int:
    """How far it is ahead of the first retained record."""
    return max(0, (partition.position or 0) - partition.log_start)
