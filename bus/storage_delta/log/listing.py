"""Names of the files in the folders of a partition's table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.errors import StorageDamaged
from bus.model import TopicPartition
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import is_data_file
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

LOG_FOLDER = "_delta_log"
TOPICS_FOLDER = "topics"
LAST_CHECKPOINT = "_last_checkpoint"
_PARTITION_NAME = re.compile(r"0|[1-9][0-9]*")
_VERSION_NAME = re.compile(r"(\d{20})\.json")
_ENGINE_FILE_NAME = re.compile(r"part-.*\.parquet")
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True, slots=True)
class LogListing:
    """At one moment. Sizes are -1 unless they were asked for."""

    versions: Mapping[int, int]  # -> bytes, in order
    checkpoints: Mapping[int, int]  # -> bytes, in order
    others: Sequence[str]
    leftovers: Sequence[str]  # unfinished files of interrupted or running writes
    data_files: Mapping[str, int] = field(default_factory=dict)  # path -> bytes, if the caller requested them


def partition_folder(partition: TopicPartition) -> str:
    return f"{TOPICS_FOLDER}/{partition.topic}/{partition.partition}"


def list_partitions(store: ObjectStore, topic: str) -> list[TopicPartition]:
    """Those that have a folder. What else is in the topic's folder, such as a table over all partitions, is no part of
    them: it is never read, changed or deleted with them."""
    names = store.list(f"{TOPICS_FOLDER}/{topic}", with_sizes=False).folders
    return [TopicPartition(topic, int(name)) for name in names if _PARTITION_NAME.fullmatch(name)]


def version_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def replaced_name(version: int) -> str:
    """The name for a copy of an acknowledged version that another program has overwritten. Delta readers ignore it."""
    return f"_replaced.{version_name(version)}"


def is_replaced_name(name: str) -> bool:
    return name.startswith("_replaced.") and parse_version_name(name.removeprefix("_replaced.")) is not None


def parse_version_name(name: str) -> int | None:
    match = _VERSION_NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_checkpoint_name(name: str) -> int | None:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def list_table(store: ObjectStore, folder: str) -> LogListing:
    """List the log with sizes, and the data files."""
    # The log first: a data file is written before the version that names it, so none is missed.
    listing = list_log(store, folder, with_sizes=True)
    return replace(listing, data_files={entry.name: entry.size for entry in store.list(folder).files})


def list_log(
    store: ObjectStore, folder: str, *, with_sizes: bool = False, from_checkpoint: int | None = None
) -> LogListing:
    """`from_checkpoint`: without what lies before it, which is most of the versions that are kept."""
    start_at = "" if from_checkpoint is None else checkpoint_name(from_checkpoint)
    found = store.list(f"{folder}/{LOG_FOLDER}", with_sizes=with_sizes, start_at=start_at)
    versions: dict[int, int] = {}
    checkpoints: dict[int, int] = {}
    others: list[str] = []
    for entry in found.files:
        if (version := parse_version_name(entry.name)) is not None:
            versions[version] = entry.size
        elif (version := parse_checkpoint_name(entry.name)) is not None:
            checkpoints[version] = entry.size
        else:
            others.append(entry.name)
    return LogListing(versions, checkpoints, others, [entry.name for entry in found.leftovers])


def list_data_files(store: ObjectStore, folder: str, *, of_engines: bool = False) -> set[str]:
    """Those that the bus names. `of_engines`: and those that Spark and delta-rs name: where they may not write, they
    leave rows behind that they have written before they ask, and nobody else removes them."""
    names = (entry.name for entry in store.list(folder, with_sizes=False).files)
    return {name for name in names if is_data_file(name) or (of_engines and _ENGINE_FILE_NAME.fullmatch(name))}


# The boundary of a table is the first version that remained when older versions were last deleted. It keeps a leader
# that slept from reusing the number of a deleted version: cleanup raises the boundary durably before it deletes
# versions, and such a leader compares its next version with it. The file name begins with an underscore, so Delta
# readers and VACUUM ignore it.

BOUNDARY = f"{LOG_FOLDER}/_boundary"


def read_boundary(store: ObjectStore, folder: str, *, topic_id: str) -> int:
    """The first version that stayed; -1 if none was dropped from the table of this topic. One of another topic, which
    had this name before, does not count. Raises `StorageFault`, `StorageDamaged`."""
    key = f"{folder}/{BOUNDARY}"
    try:
        data = store.get(key)
    except KeyNotFound:
        return -1
    try:
        found = parse_json(data)
        version, owner = int(found["keptFrom"]), str(found["topicId"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(
            f"{key}: expected the first version that is kept as keptFrom, and topicId, found {data[:100]!r} ({error}); "
            f"`bus log repair` puts it right"
        ) from None
    return version if owner == topic_id else -1


def raise_boundary(store: ObjectStore, folder: str, version: int, *, topic_id: str) -> None:
    """Raise the boundary before versions below `version` are deleted. Never lowers it: a leader that was overtaken
    during its cleanup would otherwise admit a commit of a third leader. Durable. Raises `StorageFault`,
    `StorageDamaged`."""
    if version > read_boundary(store, folder, topic_id=topic_id):
        store.put(f"{folder}/{BOUNDARY}", json.dumps({"keptFrom": version, "topicId": topic_id}).encode() + b"\n")


def remove_boundary(store: ObjectStore, folder: str) -> None:
    """Remove the boundary of a table that cannot have a former leader."""
    store.delete(f"{folder}/{BOUNDARY}")
