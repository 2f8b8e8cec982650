"""The configs of a topic: names, types, defaults, ranges and meanings.

Names, types, defaults and ranges are Kafka's (org.apache.kafka.storage.internals.log.LogConfig); `commit.interval.ms`,
`commit.burst` and those that begin with `delta.` are the bus's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.model import TimestampType
from bus.settings.keys import (
    LONG_MAX,
    AnyOf,
    Between,
    OneOf,
    boolean,
    double,
    integer,
    keys_of,
    long,
    string,
    strings,
)

SEGMENT_BYTES_MIN = 1_048_576
DAY_MS = 86_400_000
CLEANUP_POLICIES = ("delete", "compact")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs of one topic with all defaults filled in. All that is known of a key stands here."""

    cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        "What happens to old records: delete by age and size, compact to the last one of each key; empty: nothing.",
        AnyOf(CLEANUP_POLICIES),
    )
    retention_ms: int = long(7 * DAY_MS, "Age in ms at which delete may remove a record; -1: never.", Between(-1))
    retention_bytes: int = long(
        -1, "Size of a partition above which delete removes its oldest records; -1: no bound.", Between(-1)
    )
    segment_bytes: int = integer(
        1_073_741_824, "Size that small data files are rolled up to.", Between(SEGMENT_BYTES_MIN)
    )
    segment_ms: int = long(7 * DAY_MS, "Age in ms at which small data files are rolled up, full or not.", Between(1))
    max_message_bytes: int = integer(
        1_048_588,
        "Largest single record, key + value + headers, in bytes; unlike Kafka's it bounds no batch of records.",
        Between(0),
    )
    min_insync_replicas: int = integer(
        1,
        "Brokers, the leader among them, that must have read a commit before acks=all is answered. It buys a successor "
        "that is warm, not durability.",
        Between(1),
    )
    compression_type: str = string(
        "producer",
        "Codec of the data files; producer and uncompressed: none, with any codec of the producer.",
        OneOf(COMPRESSION_TYPES),
    )
    message_timestamp_type: str = string(
        "CreateTime",
        "Whose clock stamps a record: the producer's (CreateTime) or the broker's (LogAppendTime).",
        OneOf(TIMESTAMP_TYPES),
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        "With CreateTime: how many ms a timestamp may lie behind the broker's clock before its batch is refused.",
        Between(0),
    )
    message_timestamp_after_max_ms: int = long(
        3_600_000,
        "With CreateTime: how many ms a timestamp may lie ahead of the broker's clock before its batch is refused.",
        Between(0),
    )
    delete_retention_ms: int = long(DAY_MS, "How many ms compaction keeps a tombstone for readers to see.", Between(0))
    min_cleanable_dirty_ratio: float = double(
        0.5, "Share of a partition that must be uncompacted before compaction takes it up.", Between(0, 1)
    )
    min_compaction_lag_ms: int = long(0, "Age in ms that a record reaches before it is compacted.", Between(0))
    max_compaction_lag_ms: int = long(LONG_MAX, "Age in ms at which a record must take part in compaction.", Between(1))
    file_delete_delay_ms: int = long(
        60_000,
        "How many ms a data file stays after the table has let go of it, for readers that still use it.",
        Between(0),
    )
    delta_log_retention_ms: int = long(
        DAY_MS,
        "Age in ms at which versions behind a checkpoint leave the Delta log; native streams idle longer begin again.",
        Between(0),
    )
    delta_log_versions_max: int = integer(
        50_000,
        "Versions that the Delta log keeps at most; older ones behind a checkpoint go before their time.",
        Between(1),
    )
    delta_foreign_writers_enable: bool = boolean(
        False,
        "Other Delta engines may write to the topic's tables. Counts when a table is made, and with bus log upgrade.",
    )
    commit_interval_ms: int = integer(
        10,
        "Pace of a busy partition's Delta commits, in ms; longer makes fewer, larger files and later answers.",
        Between(0),
    )
    commit_burst: int = integer(
        10_000, "Commits that a partition may make at once before the pace of commit.interval.ms sets in.", Between(1)
    )

    @property
    def timestamp_type(self) -> TimestampType:
        is_create_time = self.message_timestamp_type == "CreateTime"
        return TimestampType.CREATE_TIME if is_create_time else TimestampType.LOG_APPEND_TIME

    @property
    def file_compression(self) -> str:
        """The codec of the data files: none, gzip, snappy, lz4 or zstd. A producer's own codec ends at the broker,
        which decodes what it stores as columns, so `producer` has nothing to keep and means none."""
        return "none" if self.compression_type in ("producer", "uncompressed") else self.compression_type


TOPIC_CONFIGS = keys_of(TopicConfig)
