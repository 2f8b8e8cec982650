from __future__ import annotations

import threading
from typing import Any

from bus.client.connection.group_requests import Heartbeat, LeaveGroup, OffsetCommit
from bus.client.group.link import GroupLink, GroupRequest
from bus.client.values import GroupMetadata
from bus.errors import BusError, ErrorCode


class Bench:
    """A link to a cluster that begins no call, and machines that note what they are told."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self.changed = threading.Condition(lock)
        self.answers: list[tuple[str, Any]] = []
        cluster: Any = self
        self.link = GroupLink(cluster, self.changed, lock, self)
        self.was_reached = True

    def open_stream(self, *call: Any) -> Any:
        raise RuntimeError("no more threads")

    def start_call(self, *call: Any, **times: Any) -> Any:
        raise RuntimeError("no more threads")

    def take_answer(self, request: GroupRequest, answer: Any, now_ms: float) -> None:
        assert self.changed._is_owned()  # type: ignore[attr-defined]
        self.answers.append((request.method, answer))

    def take_notice(self) -> None: ...

    def tick(self, now_ms: float) -> float:
        return now_ms


def test_machines_are_told_of_requests_that_could_not_be_begun_after_the_step_that_sent_them() -> None:
    bench = Bench()
    member = GroupMetadata("g")
    with bench.changed:
        for call in (Heartbeat(member), OffsetCommit(member, {}), LeaveGroup(member, "")):
            bench.link.send(GroupRequest(call, "c:1", 1_000))
        assert bench.link.has_outgoing
        assert bench.answers == []
    bench.link.deliver()
    assert [method for method, _ in bench.answers] == ["Heartbeat", "OffsetCommit", "LeaveGroup"]
    for _, error in bench.answers:
        assert isinstance(error, BusError)
        assert error.code is ErrorCode.NETWORK_EXCEPTION
    assert not bench.link.has_outgoing
