"""A TCP proxy for tests: an address for each broker, with a link behind it that can be cut, delayed and made silent, or
swallow what is sent on some of its connections, as load balancers, NAT and firewalls do that have forgotten them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

_CHUNK_BYTES = 65_536


@dataclass(eq=False)
class _Connection:
    swallows_requests: bool = False
    swallows_answers: bool = False


class Link:
    """To one broker, at `address`. All connections share its faults: those that are open and those to come.

    While it is silent bytes are taken and kept, as by a network that loses every packet; they arrive once it is mended.
    While it is cut, connections break, and new ones break at once. A connection that is swallowed stays open for good,
    and nothing arrives; others are not touched.
    """

    def __init__(self, proxy: TcpProxy, target: str) -> None:
        self._proxy = proxy
        self.target = target
        self.address = ""
        self._delay_s = 0.0
        self._is_cut = False
        self._may_pass: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[_Connection] = set()
        self.swallowed_count = 0

    async def listen(self) -> None:
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # ------------------------------------------------------------ faults, from any thread

    def silence(self) -> None:
        self._proxy.call(self._may_pass.clear)

    def swallow(self, *, only_answers: bool = False) -> None:
        """Swallow what is sent on the connections that are open, in both directions or by the broker alone."""

        def begin() -> None:
            for connection in self._connections:
                self._swallow(connection, only_answers=only_answers)

        self._proxy.call(begin)

    @property
    def connection_count(self) -> int:
        """Those that are open, swallowed or not."""
        return len(self._connections)

    @property
    def passing_count(self) -> int:
        """Those that are open and not swallowed."""
        return sum(not connection.swallows_answers for connection in tuple(self._connections))

    def delay(self, seconds: float) -> None:
        """Every piece of data, in both directions."""

        def begin() -> None:
            self._delay_s = seconds

        self._proxy.call(begin)

    def cut(self) -> None:
        def begin() -> None:
            self._is_cut = True
            self._break_off()

        self._proxy.call(begin)

    def break_off(self) -> None:
        """The connections that are open; new ones may be made."""
        self._proxy.call(self._break_off)

    def mend(self) -> None:
        def end() -> None:
            self._is_cut, self._delay_s = False, 0.0
            self._may_pass.set()

        self._proxy.call(end)

    # ------------------------------------------------------------ on the loop

    def _swallow(self, connection: _Connection, *, only_answers: bool) -> None:
        self.swallowed_count += not connection.swallows_answers
        connection.swallows_answers = True
        connection.swallows_requests |= not only_answers

    def _break_off(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._is_cut:
                return
            host, _, port = self.target.rpartition(":")
            with suppress(OSError):
                to_broker = await asyncio.open_connection(host, int(port))
                self._writers.add(to_broker[1])
                connection = _Connection()
                self._connections.add(connection)
                try:
                    await asyncio.gather(
                        self._pump(reader, to_broker[1], lambda: connection.swallows_requests),
                        self._pump(to_broker[0], writer, lambda: connection.swallows_answers),
                    )
                finally:
                    self._connections.discard(connection)
                    self._writers.discard(to_broker[1])
                    to_broker[1].transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_swallowed: Callable[[], bool]
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if is_swallowed():
                continue
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._may_pass.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side has ended")

    def close(self) -> None:
        self._is_cut = True
        self._may_pass.set()
        self._server.close()
        self._break_off()


class TcpProxy:
    """Runs its links on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()

    def link(self, target: str) -> Link:
        found = Link(self, target)
        self._run(found.listen())
        self._links.append(found)
        return found

    def call(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        self._run(run())

    def _run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(50)

    async def _end(self) -> None:
        for link in self._links:
            link.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
