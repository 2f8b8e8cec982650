"""One bidirectional call to one broker: requests go out in order, the k-th answer belongs to the k-th request.

Knows nothing of partitions, retries or users: it reports each answer, and once its end, to its owner, always from its
own reading thread. Never blocks who sends; the owner bounds what is under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from bus.client.connection.cluster import Acquaintance, Cluster
from bus.client.connection.processes import keep_in_children
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnLock, logger_of

logger = logger_of(__name__)


class RequestStream:
    """`on_answer(stream, response)` for each response, `on_end(stream, error)` once, after the last of them.

    Requests are bytes, as they go out. An exception of `on_answer` ends the stream. A response with correlation id 0
    is a notice: it answers no request.

    The end may come at any moment, also before the constructor has returned, and a request that is sent afterwards goes
    nowhere. So the owner keeps its requests, and whether the stream has ended, under one lock, which it holds while it
    sends and which `on_end` takes.
    """

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        method: str,
        *,
        on_answer: Callable[[RequestStream, Any], None],
        on_end: Callable[[RequestStream, BusError], None],
    ) -> None:
        self.address = address
        self._on_answer = on_answer
        self._on_end = on_end
        self._cut_reason: str | None = None
        self._refusal: BusError | None = None  # the error of a request that the broker would not understand
        self._method = method
        keep_in_children(self)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._cluster = cluster
        self._unanswered_lock = OwnLock()
        self._unanswered: int | None = 0  # None: the stream has ended
        requests = iter(self._requests.get, None)
        self._opening = OwnLock()
        self._connection: Any = None
        self._call: Any = None
        known = cluster.known(address)
        if known is not None:  # else its reader opens it, as a first contact takes a while
            self._open(requests, known)
        self._unopened = requests
        self._reader = threading.Thread(target=self._read, name=f"bus-{method.lower()}-{address}", daemon=True)
        try:
            self._reader.start()
        except BaseException:
            self.cut("its answers are not read")
            raise

    def _open(self, requests: Iterator[bytes], known: Acquaintance) -> None:
        connection, call = self._cluster.open_stream(self.address, self._method, requests, known, self._refuse)
        with self._opening:
            self._connection, self._call = connection, call
            if self._cut_reason is not None or self._refusal is not None:
                call.cancel()
        self._cluster.join(connection, self)

    def _refuse(self, error: BusError) -> None:
        with self._opening:
            self._refusal = error
            if self._call is not None:
                self._call.cancel()

    def send(self, request: bytes) -> None:
        with self._unanswered_lock:
            if self._unanswered is not None:
                self._unanswered += 1
                self._cluster.watch.note_sent(self.address)
                if self._connection is not None:
                    self._connection.note_sent()
        self._requests.put(request)

    def cut(self, reason: str, *, is_late: bool = False) -> None:
        """Give the stream up: what is not answered yet has an unknown outcome. `on_end` follows. `is_late`: because no
        answer came in time, so the next stream has another connection."""
        with self._opening:
            self._cut_reason = reason
            if self._call is not None:
                self._call.cancel()
        self._requests.put(None)
        if is_late and self._connection is not None:
            self._cluster.note_late(self._connection)

    def leave(self) -> None:
        """Its connection is used for nothing new: end, unless an answer is awaited, which has its own time-out."""
        with self._unanswered_lock:
            if self._unanswered:
                return
        self.cut("another request on its connection had no answer in time")

    def finish(self) -> None:
        """No more requests; the broker ends the stream after its last answer."""
        self._requests.put(None)

    def join(self, timeout: float | None) -> None:
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    def _read(self) -> None:
        error = BusError(ErrorCode.NETWORK_EXCEPTION, f"the broker at {self.address} ended the stream")
        try:
            if self._call is None:
                self._open(self._unopened, self._cluster.introduce(self.address))
        except BusError as failure:
            self._end(failure)
            return
        except BaseException as failure:  # the thread's edge: the owner waits for the end
            logger.exception("the stream %s to %s could not be opened", self._method, self.address)
            reason = f"{self._method} at {self.address} could not be opened: {failure!r}"
            self._end(BusError(ErrorCode.NETWORK_EXCEPTION, reason))
            return
        try:
            for response in self._call:
                self._note_response(response)
                self._on_answer(self, response)
        except grpc.RpcError as failure:
            if self._cut_reason is not None:
                error = BusError(ErrorCode.NETWORK_EXCEPTION, self._cut_reason)
            else:
                error = self._cluster.failure(self._connection, failure, self._method)
        except BaseException as failure:  # the thread's edge; a callback may say sys.exit()
            logger.exception("reading the answers of %s failed", self.address)
            self._call.cancel()
            error = BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"an answer of {self.address} made no sense: {failure!r}")
        self._end(self._refusal or error)

    def _end(self, error: BusError) -> None:
        if self._connection is not None:
            self._cluster.part(self._connection, self)
        self._note_end()
        self._requests.put(None)  # lets gRPC's sending thread end as well
        self._on_end(self, error)

    def _note_response(self, response: Any) -> None:
        watch = self._cluster.watch
        self._connection.note_heard()
        if not response.correlation_id:
            watch.note_heard(self.address)
            return
        with self._unanswered_lock:
            if self._unanswered:
                self._unanswered -= 1
                watch.note_answer(self.address)

    def _note_end(self) -> None:
        with self._unanswered_lock:
            left, self._unanswered = self._unanswered, None
        if left:
            self._cluster.watch.note_settled(self.address, left)
