"""The progress of a streaming query as that of a consumer group, so that its lag shows where every consumer's does.

The checkpoint decides where the query goes on; the group only tells. Guards one promise: telling never stops a query,
and what is told was processed. Commits as a consumer without membership does, so a group that has members refuses.
"""

from __future__ import annotations

import logging

from bus.errors import BusError
from bus.spark.source.access import LogAccess
from bus.spark.source.options import SourceOptions
from bus.spark.source.positions import QueryOffsets

_log = logging.getLogger(__name__)


class QueryProgress:
    def __init__(self, options: SourceOptions, access: LogAccess) -> None:
        self._options = options
        self._access = access
        self._told: QueryOffsets | None = None
        self._has_failed = False

    def commit(self, done: QueryOffsets) -> None:
        """Returns without having told anybody if the broker refuses, or does not answer."""
        if self._told is not None and done.topic_ids != self._told.topic_ids:
            self._told = None  # what was committed for a topic that is gone is gone with it
        known = {} if self._told is None else self._told.offsets
        news = {partition: offset for partition, offset in done.offsets.items() if known.get(partition) != offset}
        if not news:
            return
        group_id = self._options.group_id or f"{self._options.group_id_prefix}-{done.query_id}"
        try:
            self._access.tell_progress(group_id, news)
        except BusError as error:
            if not self._has_failed:  # once, not at each batch
                _log.warning("progress of group %s is not shown: %s", group_id, error)
            self._has_failed = True
            return
        self._told, self._has_failed = done, False
