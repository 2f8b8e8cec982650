"""One GroupSession stream to the coordinator: heartbeats and offset commits out, their answers and notices back.

Knows nothing of members or offsets. Guards the pairing of question and answer: by correlation id, each once; when the
stream ends, whatever is not answered has the stream's error for its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bus.client.connection.cluster import Cluster
from bus.client.connection.group_requests import decode_session_answer, encode_session_call
from bus.client.connection.request_stream import RequestStream
from bus.client.group.coordinator import GroupRequest
from bus.errors import BusError


class GroupSession:
    """Who calls it holds the lock that `on_answers` takes. `on_answers` gets pairs of request and answer, and whether
    the coordinator gave notice, on the stream's reading thread."""

    def __init__(
        self, cluster: Cluster, address: str, on_answers: Callable[[list[tuple[GroupRequest, Any]], bool], None]
    ) -> None:
        self.address = address
        self._on_answers = on_answers
        self._asked: dict[int, GroupRequest] = {}
        self._correlation_id = 0
        self.is_over = False
        self._stream = RequestStream(cluster, address, "GroupSession", on_answer=self._on_answer, on_end=self._on_end)

    def send(self, request: GroupRequest) -> None:
        self._correlation_id += 1
        self._asked[self._correlation_id] = request
        self._stream.send(encode_session_call(self._correlation_id, request.call))

    def cut(self) -> None:
        self._stream.cut("the coordinator is another one, or cannot be reached")

    def join(self, timeout_s: float) -> None:
        self._stream.join(timeout_s)

    def _on_answer(self, stream: RequestStream, response: Any) -> None:
        if response.correlation_id == 0:
            self._on_answers([], True)
            return
        request = self._asked.pop(response.correlation_id, None)
        if request is None:
            raise ValueError(f"expected an answer that is not there yet, found {response.correlation_id} once more")
        self._on_answers([(request, decode_session_answer(request.call, response))], False)

    def _on_end(self, stream: RequestStream, error: BusError) -> None:
        self.is_over = True
        asked, self._asked = self._asked, {}
        self._on_answers([(request, error) for request in asked.values()], False)
