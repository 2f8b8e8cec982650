"""Where and how large: the sizes of a run, its folder, the brokers of both sides.

Guards one promise: no theme feels what the one before left behind. Each has brokers of its own and a peer that is
started, warmed up and stopped by its pid; the space of what it wrote is given back without deleting a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker_process import PLAINTEXT, BrokerProcess
from benchmarks.kafka import Kafka
from benchmarks.key_files import KeyFiles

MIB = 1024 * 1024
_CUT_BYTES_MIN = 64 * 1024
# Kafka syncs after every batch that it appends, as the bus syncs every commit: a topic config.
FLUSH_EACH = "flush.messages=1"
PAGE_CACHE = "Kafka with its defaults: in the page cache when it answers; the bus: on disk"
SYNCED = "both on disk when they answer: Kafka with flush.messages=1"


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    free_gib: int = 40
    produce_seconds: float = 10.0
    peer_small_records: int = 6_000_000
    peer_large_records: int = 800_000
    peer_warm_up_records: int = 2_000_000
    latency_records: int = 1_000
    commits: int = 100_000
    stored_records: int = 10_000_000
    partitions: int = 1_000
    idle_seconds: float = 15.0
    soak_minutes: int = 10
    send_seconds: float = 8.0
    # What is compared is a few per cent, so there are more rounds, of less time.
    idempotence_rounds: int = 7
    idempotence_seconds: float = 5.0
    producers: int = 10_000
    sweep_seconds: float = 5.0
    peer_sweep_seconds: float = 12.0  # longer, for its tool starts cold
    batch_records: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
    batch_bytes: tuple[int, ...] = tuple(2**power for power in range(10, 21, 2))
    load_percents: tuple[int, ...] = (1, 10, 25, 50, 75, 90)
    load_seconds: float = 8.0
    group_members: int = 10_000
    heartbeat_seconds: float = 20.0
    commit_seconds: float = 8.0
    offset_commits: int = 1_000_000
    consumed_records: int = 5_000_000
    timers: int = 100_000
    timers_life_ms: int = 180_000
    day_commits: int = 200_000  # of the 8.64 million that a day has at 100 a second
    day_commits_ruled: int = 8_640_000
    rewritten_commits: int = 256
    compacted_records: int = 10_000_000
    compacted_keys: int = 1_000_000
    rolling_seconds: float = 20.0
    kept_versions: int = 10_000
    spark_records: int = 2_000_000  # of 100 bytes, and a tenth as many of 1 KB
    spark_latencies: int = 100
    spark_freshness: int = 40
    spark_triggers: int = 10
    cluster_partitions: int = 10_000
    transaction_pipeline_records: int = 20_000
    acls: int = 10_000
    acl_rounds: int = 7
    acl_turns: int = 20  # in each round; what is compared is a few per cent
    acl_latency_records: int = 500
    tls_rounds: int = 5
    tls_seconds: float = 3.0
    tls_stored_records: int = 2_000_000
    logins: int = 1_000
    login_rounds: int = 4
    login_seconds: float = 15.0
    failover_partitions: int = 1_000
    failover_repeats: int = 20
    failover_peer_repeats: int = 5  # each takes Kafka half a minute
    failover_rate: float = 50.0  # records a second, each a commit of its own: two cores do a round besides
    failover_rest_seconds: float = 3.0


QUICK = Sizes(
    rounds=1,
    free_gib=6,
    produce_seconds=2.0,
    peer_small_records=1_000_000,
    peer_large_records=100_000,
    peer_warm_up_records=100_000,
    latency_records=300,
    commits=3_000,
    stored_records=1_000_000,
    partitions=100,
    idle_seconds=3.0,
    soak_minutes=1,
    send_seconds=1.0,
    idempotence_rounds=2,
    idempotence_seconds=1.0,
    producers=500,
    group_members=500,
    heartbeat_seconds=3.0,
    commit_seconds=1.0,
    offset_commits=20_000,
    consumed_records=500_000,
    timers=20_000,
    day_commits=3_000,
    day_commits_ruled=200_000,
    rewritten_commits=32,
    compacted_records=300_000,
    compacted_keys=30_000,
    rolling_seconds=3.0,
    kept_versions=300,
    spark_records=200_000,
    spark_latencies=10,
    spark_freshness=5,
    spark_triggers=3,
    cluster_partitions=300,
    transaction_pipeline_records=2_000,
    acls=500,
    acl_rounds=2,
    acl_turns=4,
    acl_latency_records=50,
    tls_rounds=1,
    tls_seconds=1.0,
    tls_stored_records=200_000,
    logins=60,
    login_rounds=1,
    login_seconds=3.0,
    failover_partitions=30,
    failover_repeats=2,
    failover_peer_repeats=1,
    failover_rate=100.0,
    failover_rest_seconds=0.5,
    sweep_seconds=0.5,
    peer_sweep_seconds=1.0,
    batch_records=(100, 10_000),
    batch_bytes=(4_096, 262_144),
    load_percents=(10, 50),
    load_seconds=1.0,
)


@dataclass(slots=True)
class Bench:
    """The sizes, a folder for all data, the peer if there is one, and who is told of progress."""

    sizes: Sizes
    folder: Path
    report: Callable[[str], None]
    has_peer: bool = True
    kafka: Kafka | None = None
    topics: int = 0

    def peer(self, keys: KeyFiles | None = None) -> Kafka | None:
        """Kafka, started when a theme first asks for it and warmed up: its compiler has seen the produce path. With
        `keys` it has a listener by TLS, too."""
        if self.has_peer and self.kafka is None:
            self.report("starting Kafka")
            self.kafka = Kafka(Path(tempfile.mkdtemp(prefix="kafka-", dir=self.folder)), keys)
            self.kafka.create_topic("warm-up", 4)
            self.kafka.tools.produce("warm-up", records=self.sizes.peer_warm_up_records, value_bytes=100)
        return self.kafka

    def end_theme(self) -> None:
        """Stops the peer and gives the space of all data back.

        Files are cut to nothing, not deleted: for minutes after many were deleted, ext4 passes over their inodes one by
        one whenever a file is created, and that would be measured too.
        """
        if self.kafka is not None:
            self.kafka.stop()
            self.kafka = None
        self.cut(self.folder)

    @staticmethod
    def cut(folder: Path) -> None:
        """Give the space of what is in it back before the theme is over."""
        for parent, _, names in os.walk(folder):
            for path in (f"{parent}/{name}" for name in names):
                if os.stat(path).st_size >= _CUT_BYTES_MIN:
                    os.truncate(path, 0)

    def new_topic(self) -> str:
        self.topics += 1
        return f"bench-{self.topics}"

    def broker(self, *settings: str, protocols: Sequence[str] = (PLAINTEXT,)) -> BrokerProcess:
        """On a root of its own."""
        return BrokerProcess(self.new_root(), *settings, protocols=protocols)

    def new_root(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="root-", dir=self.folder))

    def check_space(self) -> None:
        """Raises `OSError`: better at once than after half an hour."""
        free = shutil.disk_usage(self.folder).free / 2**30
        if free < self.sizes.free_gib:
            raise OSError(
                f"expected {self.sizes.free_gib} GiB free under {self.folder}, found {free:.1f}: "
                "name another disk with --folder, or make do with --quick"
            )
