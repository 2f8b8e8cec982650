from __future__ import annotations

import logging
from typing import Any

import pytest

from bus.client.interceptors import ConsumerInterceptorChain
from bus.client.values import ConsumerRecord, OffsetAndMetadata
from bus.model import TimestampType, TopicPartition

RECORDS = [ConsumerRecord("t", 0, offset, 0, TimestampType.CREATE_TIME, None, b"v", [], 0) for offset in range(3)]


class Drop:
    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.committed: list[Any] = []

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        return [record for record in records if record.offset != self.offset]

    def on_commit(self, offsets: Any) -> None:
        self.committed.append(offsets)

    def close(self) -> None:
        pass


class Broken:
    def on_consume(self, records: list[ConsumerRecord]) -> Any:
        return None

    def on_commit(self, offsets: Any) -> None:
        raise RuntimeError("broken")

    def close(self) -> None:
        raise RuntimeError("broken")


def test_each_gets_what_the_one_before_it_made() -> None:
    chain = ConsumerInterceptorChain([Drop(0), Drop(2)])
    assert [record.offset for record in chain.on_consume(RECORDS)] == [1]


def test_one_that_breaks_is_passed_over_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    last = Drop(0)
    chain = ConsumerInterceptorChain([Broken(), last], clock=lambda: 0.0)
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(3)}
    with caplog.at_level(logging.WARNING):
        assert [record.offset for record in chain.on_consume(RECORDS)] == [1, 2]
        chain.on_consume(RECORDS)
        chain.on_commit(offsets)
        chain.close()
    assert last.committed == [offsets]
    assert [message.split(" failed")[0] for message in caplog.messages] == [
        "interceptor Broken: on_consume",
        "interceptor Broken: on_commit",
        "interceptor Broken: close",
    ]
