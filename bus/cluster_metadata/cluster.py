"""How the cluster's knowledge of itself comes about: `__cluster_metadata` replayed.

`apply_all` is the only way in which a `ClusterState` changes, live and while loading. Guards these promises: a topic's
partitions are never fewer than before, a leader epoch never goes back, a topic id never stands for two topics, no two
topics have names that collide; those of producers stand in producer_ids.py. Decides nothing (cluster_decisions.py and
producer_decisions.py do), does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bus.cluster_metadata.cluster_draft import ClusterDraft
from bus.cluster_metadata.cluster_records import ClusterRecord, decode_record
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER as EMPTY_CLUSTER
from bus.cluster_metadata.cluster_state import ClusterState as ClusterState
from bus.cluster_metadata.cluster_state import Leadership as Leadership
from bus.cluster_metadata.cluster_state import Topic as Topic


def replay_cluster(
    rows: Iterable[Mapping[str, Any]], *, first_offset: int = 0, state: ClusterState = EMPTY_CLUSTER
) -> ClusterState:
    """The state after the rows of the metadata log, in offset order from `first_offset` on; `state` is that before
    them.

    Raises `ValueError` that names the offset for a row that cannot be read or that contradicts those before it.
    """
    draft = ClusterDraft(state)
    for offset, row in enumerate(rows, first_offset):
        try:
            draft.apply(decode_record(row))
        except (ValueError, AssertionError) as error:
            raise ValueError(f"record at offset {offset} of the cluster metadata: {error}") from error
    try:
        return draft.finish()
    except AssertionError as error:
        raise ValueError(f"the cluster metadata: {error}") from error


def apply(state: ClusterState, record: ClusterRecord) -> ClusterState:
    return apply_all(state, (record,))


def apply_all(state: ClusterState, records: Iterable[ClusterRecord]) -> ClusterState:
    """The state after all of `records`; each map of the state that they change is copied once."""
    draft = ClusterDraft(state)
    for record in records:
        draft.apply(record)
    return draft.finish()
