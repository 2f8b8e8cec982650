"""How long a writer of the sink waits for an acknowledgement, and what it says when it gives up."""

from __future__ import annotations

import queue
from typing import Any

import pyarrow as pa
import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.sink import stamped_writer
from bus.spark.sink.stamped_writer import StampedWriter

P0 = TopicPartition("t", 0)
ROW = pa.record_batch({"value": [b"v"]})


class World:
    """A cluster of which no broker answers, and a clock that moves when somebody waits."""

    def __init__(self, now_ms: float) -> None:
        self.now_ms = now_ms
        self.backoff: Any = self
        self.metadata: Any = self

    def ms(self, attempts: int) -> float:
        return 700.0

    def clock(self) -> float:
        return self.now_ms

    def topic(self, name: str) -> None:
        return None

    def leader_address(self, info: object, partition: int) -> str:
        raise AssertionError("nothing is known of the topic")

    def forget(self, names: list[str]) -> None: ...

    def refresh(self, names: list[str]) -> None:
        raise BusError(ErrorCode.NETWORK_EXCEPTION, "no broker listens")

    def get_nowait(self) -> None:
        raise queue.Empty

    def get(self, timeout: float) -> None:
        self.now_ms += timeout * 1000
        raise queue.Empty


@pytest.mark.parametrize("started_ms", [0.0, 1_000_000.0])
def test_failure_without_progress_comes_in_time_and_names_the_last_refusal(
    started_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world: Any = World(started_ms)
    monkeypatch.setattr(stamped_writer, "monotonic_ms", world.clock)
    config = parse_config(ProducerConfig, {"delivery_timeout_ms": 10_000, "request_timeout_ms": 5_000})
    writer = StampedWriter(world, config, producer_id=7, producer_epoch=0)
    writer._events = world
    writer.send(P0, ROW)
    with pytest.raises(BusError) as failure:
        writer.flush()
    assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert "nothing was acknowledged for 10 s" in failure.value.message
    assert "NETWORK_EXCEPTION: no broker listens" in failure.value.message
    assert 10_000 < world.now_ms - started_ms < 11_000
