"""Internal tables of an earlier bus: their properties are brought up to date when a broker opens them."""

from __future__ import annotations

import json

from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, KeyedRow
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, led
from tests.support.version_files import without_sum

NAME = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
LOG = f"topics/{CONSUMER_OFFSETS_TOPIC}/0/_delta_log"
PROPERTY = "delta.deletedFileRetentionDuration"


def test_checkpoints_of_an_earlier_table_name_removed_files_for_as_long_as_they_are_there() -> None:
    store = MemoryStore()
    storage = open_storage_on(store, exclusive=False)
    table = led(storage.create_partition(NAME, topic_id="id"))
    columns = storage.keyed_rows(NAME.topic).encode([KeyedRow(b"k", {"committed_offset": 5})], now_ms=NOW_MS).columns
    batch = LogBatch(0, 1, 1, 1, 0, TimestampType.CREATE_TIME, NOW_MS, NOW_MS, columns)
    assert isinstance(table.append([batch], leader_epoch=0, now_ms=NOW_MS), Committed)
    key = f"{LOG}/{version_name(0)}"
    earlier = without_sum(store.get(key)).replace(b"interval 10000 days", b"interval 2 minutes")
    assert earlier != store.get(key)
    store.put(key, earlier)
    for _ in range(2):  # once is enough
        state = led(storage.open_partition(NAME, topic_id="id")).state
        assert (state.version, state.high_watermark, state.file_count) == (2, 1, 1)
    actions = [json.loads(line) for line in store.get(f"{LOG}/{version_name(2)}").splitlines()]
    assert [next(iter(action)) for action in actions] == ["commitInfo", "metaData"]
    before = next(json.loads(line)["metaData"] for line in earlier.splitlines() if b"metaData" in line)
    before["configuration"][PROPERTY] = "interval 10000 days"
    assert actions[1]["metaData"] == before
    assert verify_partition(store, NAME, topic_id="id").breaches == []
