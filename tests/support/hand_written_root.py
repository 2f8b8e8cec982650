"""A bus root whose tables are written by hand, action by action: a judge that owes nothing to the code under test."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, ViewCreated, encode_record
from bus.json_views import check_view
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE, delta_type, log_schema

Row = tuple[bytes | None, bytes | None]
FIRST_TIMESTAMP_MS = 1_700_000_000_000  # the record at offset n is n ms later


class HandWrittenTable:
    def __init__(self, folder: Path, topic_id: str | None, value_type: pa.DataType | None = None) -> None:
        self.folder = folder
        self.schema = log_schema(value_type)
        self.version = -1
        self.high_watermark = 0
        self.adds: dict[int, dict[str, Any]] = {}  # the live files by their first offset
        (folder / "_delta_log").mkdir(parents=True)
        fields = [
            {"name": field.name, "type": delta_type(field.type), "nullable": True, "metadata": {}}
            for field in self.schema
        ]
        configuration = {"delta.dataSkippingStatsColumns": "offset,timestamp,producer_id,sequence"}
        if topic_id is not None:
            configuration["bus.topic_id"] = topic_id
        self.commit(
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": str(uuid.uuid4()),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": [],
                    "configuration": configuration,
                    "createdTime": FIRST_TIMESTAMP_MS,
                }
            },
        )

    def append(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        headers: Sequence[Any] | None = None,
        *,
        is_of_one_time: bool = False,
    ) -> None:
        first, count = self.high_watermark, len(values)
        columns = {
            "offset": range(first, first + count),
            "timestamp": [(FIRST_TIMESTAMP_MS + first + n * (not is_of_one_time)) * 1000 for n in range(count)],
            "timestamp_type": [0] * count,
            "key": keys,
            "value": values,
            "headers": headers if headers is not None else [None] * count,
            "leader_epoch": [0] * count,
        }
        arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in self.schema]
        name = f"{first:020}-{uuid.uuid4()}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=self.schema), self.folder / name, store_schema=False)
        last = first + count - 1
        stats = {
            "numRecords": count,
            "minValues": {"offset": first},
            "maxValues": {"offset": last},
            "nullCount": {"offset": 0},
        }
        add = {
            "path": name,
            "partitionValues": {},
            "size": (self.folder / name).stat().st_size,
            "modificationTime": FIRST_TIMESTAMP_MS,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        self.commit({"commitInfo": {"operation": "WRITE", "isBlindAppend": True}}, {"add": add})
        self.adds[first] = add
        self.high_watermark += count

    def rename(self, base_offset: int, name: str) -> None:
        """Another engine has rewritten this file."""
        before = self.adds.pop(base_offset)
        (self.folder / before["path"]).rename(self.folder / name)
        self.adds[base_offset] = {**before, "path": name, "dataChange": False}
        self.commit(
            {"commitInfo": {"operation": "OPTIMIZE", "isBlindAppend": False}},
            {"remove": {"path": before["path"], "deletionTimestamp": FIRST_TIMESTAMP_MS, "dataChange": False}},
            {"add": self.adds[base_offset]},
        )

    def commit(self, *actions: Mapping[str, Any]) -> None:
        self.version += 1
        text = "\n".join(json.dumps(action) for action in actions)
        (self.folder / "_delta_log" / f"{self.version:020}.json").write_text(text, encoding="utf-8")


class HandWrittenRoot:
    def __init__(self, folder: Path, format_version: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        marker = {"format_version": format_version, "cluster_id": str(uuid.uuid4())}
        (folder / "bus-root.json").write_text(json.dumps(marker), encoding="utf-8")
        self.folder = folder
        self.metadata = HandWrittenTable(
            folder / "topics" / "__cluster_metadata" / "0", None, CLUSTER_METADATA_VALUE_TYPE
        )
        self.tables: dict[str, list[HandWrittenTable]] = {}
        self.topic_ids: dict[str, str] = {}
        self.record(BrokerRegistered(broker_id=0, host="127.0.0.1", port=9094))

    def record(self, *records: ClusterRecord) -> None:
        """Append the records as one commit."""
        values = [encode_record(record) for record in records]
        self.metadata.append([None] * len(records), values, is_of_one_time=True)

    def create_topic(self, topic: str, partitions: int = 1, value_type: pa.DataType | None = None) -> None:
        topic_id = self.topic_ids[topic] = str(uuid.uuid4())
        folder = self.folder / "topics" / topic
        self.tables[topic] = [
            HandWrittenTable(folder / str(number), topic_id, value_type) for number in range(partitions)
        ]
        self.record(TopicCreated(topic, topic_id, partitions, leader_id=0))

    def create_view(self, name: str, topic: str, schema: str, columns: Sequence[str] | None = None) -> None:
        view = check_view(name, topic, schema, columns)
        self.record(ViewCreated(view.name, view.topic, view.schema, ",".join(view.columns)))

    def append(self, topic: str, partition: int, *rows: Row, headers: Sequence[Any] | None = None) -> None:
        self.tables[topic][partition].append([key for key, _ in rows], [value for _, value in rows], headers)

    def delete_records(self, topic: str, partition: int, log_start: int) -> None:
        """The offsets below `log_start`; no file goes for it."""
        self.tables[topic][partition].commit(
            {"commitInfo": {"operation": "DELETE", "isBlindAppend": False}},
            {"txn": {"appId": "bus/log_start", "version": log_start, "lastUpdated": FIRST_TIMESTAMP_MS}},
        )
