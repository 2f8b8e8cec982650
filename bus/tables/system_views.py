"""What a root tells about its groups, topics and logs, as tables: the views of `bus sql` and of Spark.

Everything is read from the tables under the root, so a broker need not be up. Guards one promise: both engines show the
same names and the same columns, since they are made here once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from bus.json_views.view import SYSTEM_VIEW_NAMES
from bus.tables import group_views, log_views, topic_views
from bus.tables.topics import TopicTables

_VIEWS: Mapping[str, Callable[[TopicTables], pa.Table]] = {
    "groups": group_views.groups,
    "group_members": group_views.group_members,
    "group_offsets": group_views.group_offsets,
    "lag": group_views.lag,
    "topics": topic_views.topics,
    "partitions": topic_views.partitions,
    "versions": log_views.versions,
    "log_maintenance": log_views.log_maintenance,
}
VIEW_NAMES = SYSTEM_VIEW_NAMES
assert tuple(_VIEWS) == VIEW_NAMES, "a view of a topic's values may not have the name of any of these"
VIEW_SCHEMA = "bus"  # of the database: the views are there even if topics have their names


def read_view(name: str, tables: TopicTables) -> pa.Table:
    """The view as of now. Raises `StorageFault` if the log of the groups cannot be read."""
    return _VIEWS[name](tables)
