"""`__consumer_offsets` through a broker: compacted while it serves, fetched by consumers, replayed after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bus import Admin, Consumer, NewTopic, OffsetAndMetadata
from bus.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from bus.settings.broker import BrokerConfig
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from tests.support.broker_thread import running_broker

ORDERS = TopicPartition("orders", 0)
OFFSETS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
CONFIG = replace(BrokerConfig(), offsets_topic_num_partitions=1)
COMMITS = 60


def log_of(root: Path) -> list[str]:
    versions = sorted((root / "topics" / CONSUMER_OFFSETS_TOPIC / "0" / "_delta_log").glob("0*.json"))
    return [version.read_text() for version in versions]


def test_committed_offsets_survive_compaction_a_fetch_of_them_and_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path, config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("orders", partitions=1)])
        with Consumer(address, group_id="billing", enable_auto_commit=False) as consumer:
            consumer.assign([ORDERS])
            for offset in range(COMMITS):
                consumer.commit({ORDERS: OffsetAndMetadata(offset)})
        with Consumer(address, auto_offset_reset="earliest") as reader:
            reader.assign([OFFSETS])
            offsets: list[int] = []
            last = None
            while not offsets or offsets[-1] < COMMITS - 1:
                table = reader.poll_arrow(10_000)
                offsets += table.column("offset").to_pylist()
                last = table.column("value")[-1].as_py()
            assert offsets == sorted(set(offsets))
            assert last["committed_offset"] == COMMITS - 1
    assert any('"operation":"COMPACT"' in version for version in log_of(tmp_path))
    assert verify_partition(LocalStore(str(tmp_path)), OFFSETS).breaches == []
    with running_broker(tmp_path, config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Consumer(address, group_id="billing", enable_auto_commit=False) as consumer:
            assert consumer.committed([ORDERS])[ORDERS].offset == COMMITS - 1  # type: ignore[union-attr]
        with Consumer(address, auto_offset_reset="earliest") as reader:
            reader.assign([OFFSETS])
            first = reader.poll_arrow(10_000)
            assert first.num_rows < COMMITS
            assert [record.value for record in reader.poll(0)] == []
