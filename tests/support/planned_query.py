"""The planner's side of a streaming query, driven as Spark's micro-batches drive it."""

from __future__ import annotations

import json
from typing import Any

from bus.spark.source.inputs import BusInput
from bus.spark.source.rows import SOURCE_SCHEMA, columns_of
from bus.spark.source.source_options import parse_source_options
from bus.spark.source.stream import BusStreamReader
from tests.support.fake_log_access import FakeLogAccess


class Query:
    """Offsets travel as JSON."""

    def __init__(self, log: FakeLogAccess, /, *, cores: int = 1, **options: str) -> None:
        self.log = log
        self.now_s = 1_000.0
        self.slept_s: list[float] = []
        given = {"bus.root": "/log", "startingOffsets": "earliest", **options}
        if not {"assign", "subscribePattern"} & given.keys():
            given.setdefault("subscribe", "orders")
        self.reader = BusStreamReader(
            parse_source_options(given, is_stream=True),
            columns_of(SOURCE_SCHEMA, include_headers=False),
            cores=cores,
            open_log=lambda location: log,
            clock=lambda: self.now_s,
            sleep=self._sleep,
        )
        self.offset: dict[str, Any] = {}

    def _sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def begin(self) -> Query:
        self.offset = json.loads(json.dumps(self.reader.initialOffset()))
        return self

    def batch(self, limit: Any = None) -> dict[str, tuple[int, int]] | None:
        """The ranges of the next batch by partition, None if there is none."""
        start = self.offset
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        if end == start:
            return None
        self.offset = end
        return self.ranges(start, end)

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for task in self.reader.partitions(start, end):
            assert isinstance(task, BusInput)
            for planned in task.ranges:
                name = str(planned.offsets.partition)
                begin, _ = found.get(name, (planned.offsets.begin, 0))
                found[name] = (begin, planned.offsets.end)
        return found

    @property
    def lost(self) -> int:
        return int(self.offset[""]["lost_offsets"])
