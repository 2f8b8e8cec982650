"""The log of the cluster's metadata, one version after another, read from what comes to be on the disk.

It is the judge's own view: it does not depend on what any broker has followed, and knows who committed what, and when.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import apply_all, decode_record
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.model import CLUSTER_METADATA_TOPIC
from tests.simulation.memos import read_rows
from tests.support.cluster_states import topic_by_id

if TYPE_CHECKING:
    from tests.simulation.broker_world import BrokerWorld

METADATA_FOLDER = f"topics/{CLUSTER_METADATA_TOPIC}/0"
_VERSION = re.compile(r"(topics/.+/\d+)/_delta_log/(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Version:
    """A version file of a table. `leader_epoch`, `incarnation`: those of the leader that committed it, if one did."""

    folder: str
    number: int
    actions: tuple[dict[str, Any], ...]
    leader_epoch: int | None
    incarnation: str | None


def version_of(key: str) -> tuple[str, int] | None:
    """Folder and number; None if this is the name of no version file."""
    match = _VERSION.fullmatch(key)
    return None if match is None else (match[1], int(match[2]))


@functools.lru_cache(maxsize=8)
def parse_version(key: str, data: bytes) -> Version | None:
    """None if this is no version file."""
    name = version_of(key)
    if name is None:
        return None
    actions = tuple(json.loads(line) for line in data.splitlines())
    info = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return Version(*name, actions, info.get("leaderEpoch"), info.get("incarnation"))


@dataclass(frozen=True, slots=True)
class Change:
    """One version of the metadata that has records."""

    number: int
    at: float
    leader_epoch: int | None
    incarnation: str | None
    records: tuple[ClusterRecord, ...]
    before: ClusterState
    after: ClusterState


class MetadataJournal:
    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self.changes: list[Change] = []

    @property
    def state(self) -> ClusterState:
        return self.changes[-1].after if self.changes else EMPTY_CLUSTER

    def states_since(self, time: float) -> list[ClusterState]:
        """The state of that time, and all that followed."""
        since = [change for change in self.changes if change.at >= time]
        return [since[0].before, *(change.after for change in since)] if since else [self.state]

    def states_behind(self, offset: int) -> list[ClusterState]:
        """The state after the records below `offset`, and all that followed."""
        states, end = [EMPTY_CLUSTER], 0
        for change in self.changes:
            end += len(change.records)
            states = [change.after] if end <= offset else [*states, change.after]
        return states

    def take(self, version: Version) -> Change | None:
        """Return the change by that version, if it is one of the metadata and has records."""
        if version.folder != METADATA_FOLDER:
            return None
        adds = [action["add"] for action in version.actions if "add" in action]
        records = tuple(
            decode_record(value) for add in adds if add["dataChange"] for (value,) in self._read(unquote(add["path"]))
        )
        if not records:
            return None
        after = apply_all(self.state, records)
        now, leader = self._world.now, (version.leader_epoch, version.incarnation)
        self.changes.append(Change(version.number, now, *leader, records, self.state, after))
        return self.changes[-1]

    def _read(self, path: str) -> Sequence[tuple[Any, ...]]:
        return read_rows(self._world.disk.files.get(f"{METADATA_FOLDER}/{path}"), "value")

    def lose(self, folder: str, number: int) -> None:
        """That version was there, and is gone with a power failure."""
        if folder == METADATA_FOLDER:
            self.changes = [change for change in self.changes if change.number != number]

    def find_leader(self, topic_id: str, partition: int, leader_epoch: int) -> int | None:
        """The broker that was ever given that leader epoch; None if none was."""
        for change in reversed(self.changes):
            topic = topic_by_id(change.after, topic_id)
            if topic is not None and partition < len(topic.partitions):
                leadership = topic.partitions[partition]
                if leadership.leader_epoch == leader_epoch:
                    return leadership.leader_id
                if leadership.leader_epoch < leader_epoch:
                    return None
        return None
