"""What the writers of one Python worker share: a connection to each cluster, and the ids of producers.

A micro-batch has no time to connect again. Guards one promise: what is kept is only what never changes, or is asked for
again when the broker does not know it.
"""

from __future__ import annotations

from bus.client.config.clients import ProducerConfig
from bus.client.connection.cluster import Cluster
from bus.client.connection.producer_requests import init_producer_id
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.spark.sink.sink_options import SinkOptions
from bus.spark.sink.stamped_writer import StampedWriter
from bus.spark.source.source_options import OptionError

_PRODUCER_IDS_MAX = 10_000
_clusters: dict[tuple[tuple[str, ...], ProducerConfig], Cluster] = {}
_topics_seen: set[tuple[tuple[str, ...], str]] = set()
_producer_ids: dict[tuple[tuple[str, ...], str], int] = {}


def open_writer(options: SinkOptions, producer_name: str, producer_epoch: int) -> StampedWriter:
    """Waits for a broker. Raises `BusError`."""
    cluster = _cluster(options)
    return StampedWriter(
        cluster,
        options.config,
        producer_id=_producer_id(options, cluster, producer_name),
        producer_epoch=producer_epoch,
    )


def partition_count(options: SinkOptions, topic: str) -> int:
    """Waits for a broker. Raises `BusError`."""
    deadline_ms = monotonic_ms() + options.config.delivery_timeout_ms
    return len(_cluster(options).wait_topic(topic, deadline_ms=deadline_ms).partitions)


def check_topic(options: SinkOptions, *, must_answer: bool) -> None:
    """That the topic of the options exists, asked once. If no broker answers, and none `must_answer`, tasks will wait.

    Raises `OptionError`.
    """
    if options.topic is None or (options.addresses, options.topic) in _topics_seen:
        return
    try:
        _cluster(options).refresh([options.topic])
    except BusError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise OptionError(f"topic: {error.message}; make it with: bus topics create {options.topic}") from None
        if not error.retriable:
            raise OptionError(f"topic: {error.message}") from None
        if must_answer:
            raise OptionError(f"bus.bootstrap.servers: {error.message}") from None
    else:
        _topics_seen.add((options.addresses, options.topic))


def forget_producer(options: SinkOptions, producer_name: str) -> None:
    """The broker does not know its id: the next task asks for it."""
    _producer_ids.pop((options.addresses, producer_name), None)


def _cluster(options: SinkOptions) -> Cluster:
    key = (options.addresses, options.config)
    if key not in _clusters:
        _clusters[key] = Cluster(options.addresses, options.config)
    return _clusters[key]


def _producer_id(options: SinkOptions, cluster: Cluster, name: str) -> int:
    known = _producer_ids.get((options.addresses, name))
    if known is not None:
        return known
    deadline_ms = monotonic_ms() + options.config.delivery_timeout_ms
    producer_id, _ = cluster.retry(lambda: init_producer_id(cluster, name, keep_epoch=True), deadline_ms=deadline_ms)
    if len(_producer_ids) >= _PRODUCER_IDS_MAX:
        _producer_ids.clear()
    _producer_ids[options.addresses, name] = producer_id
    return producer_id
