"""The stages of a call between its connection and its answer, in their order, for the adapters of all protocols.

An adapter brings what a stage is in its protocol, and `assemble` puts these around a handler, so that an adapter has no
order of its own for any call: of one request and one answer, of several answers, or of a stream of requests. The
handler comes last: it decodes, calls a method of an API with the `Access` of the caller, and encodes. A call that only
the controller can do is checked by the broker that was asked, and again by the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from bus.broker_api.audit import NO_ANSWER
from bus.broker_api.authorization import Access
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.requests import Held, InvalidArgument, OverQuota, RequestMemory
from bus.errors import NotController

RequestT = TypeVar("RequestT")
Handle = Callable[..., Any]
Wrap = Callable[[Handle], Handle]  # a handler with a stage before it, or around it


class Stage(Enum):
    IDENTIFY = auto()
    READ = auto()
    COUNT = auto()
    HOLD_MEMORY = auto()
    GUARD = auto()
    OPEN_STREAM = auto()
    AUDIT = auto()
    PACE = auto()
    AUTHORIZE = auto()
    HANDLE = auto()


STAGES: Sequence[Stage] = (
    Stage.IDENTIFY,  # before anything is read: no byte of a stranger's request takes memory
    Stage.READ,  # the request as a whole, within the limits of its kind
    Stage.COUNT,  # as a call under way, for which a broker that stops waits; one that is not read yet is refused
    Stage.HOLD_MEMORY,  # each stage behind it may wait, with the request in memory
    Stage.GUARD,  # from here on the log has the request's id, and every error becomes an answer
    Stage.OPEN_STREAM,  # of what gives answers for long: a caller may have so many
    Stage.AUDIT,  # also of a change whose caller goes away while it waits for its turn
    Stage.PACE,  # before anything is done or looked up: a caller that owes something of its quota costs nothing
    Stage.AUTHORIZE,  # after the wait for a turn, so the ACLs of that moment decide
    Stage.HANDLE,
)
# The method of the API that the handler calls begins with the rights of the caller, in every protocol.
_OF_THE_API = frozenset((Stage.AUTHORIZE, Stage.HANDLE))
# A stream has PACE, READ and HOLD_MEMORY for each of its requests, in this order (`read_in_turn`): it is read on when
# its caller owes nothing and has room in memory. No stream of requests has AUDIT, since none changes what the audit
# keeps.


def assemble(wraps: Mapping[Stage, Wrap], handle: Handle) -> Handle:
    """Return the handler with the stages before it that are in `wraps`, in their order."""
    assert not _OF_THE_API & wraps.keys(), "expected stages of an adapter, found some of the API"
    for stage in reversed(STAGES):
        if stage in wraps:
            handle = wraps[stage](handle)
    return handle


def before(wait: Callable[..., Awaitable[object]]) -> Wrap:
    """A stage that is done before the handler behind it begins, a coroutine or an async generator. `wait` gets the
    arguments of the handler."""

    def wrap(handle: Handle) -> Handle:
        if inspect.isasyncgenfunction(handle):

            async def answers(*arguments: Any) -> AsyncIterator[Any]:
                await wait(*arguments)
                async with contextlib.aclosing(handle(*arguments)) as found:
                    async for one in found:
                        yield one

            return answers

        async def answer(*arguments: Any) -> Any:
            await wait(*arguments)
            return await handle(*arguments)

        return answer

    return wrap


def within(enter: Callable[..., contextlib.AbstractContextManager[Sequence[Any]]]) -> Wrap:
    """A stage that lasts until the handler behind it ends, a coroutine or an async generator. `enter` gets the
    arguments of this handler, and gives those of the one behind it."""

    def wrap(handle: Handle) -> Handle:
        if inspect.isasyncgenfunction(handle):

            async def answers(*arguments: Any) -> AsyncIterator[Any]:
                with enter(*arguments) as passed:
                    async with contextlib.aclosing(handle(*passed)) as found:
                        async for one in found:
                            yield one

            return answers

        async def answer(*arguments: Any) -> Any:
            with enter(*arguments) as passed:
                return await handle(*passed)

        return answer

    return wrap


async def read_in_turn(
    requests: AsyncIterator[RequestT], memory: RequestMemory, pace: CallerPace, size_of: Callable[[RequestT], int]
) -> AsyncIterator[tuple[RequestT, Held | None]]:
    """Read the requests of a stream. Each counts until the caller drops it, and none is read until the client has room,
    and owes nothing of its quota. None in place of what it takes: others of the client's streams have taken much more
    than its share meanwhile, and it is to be refused; it is not charged."""
    client = pace.caller.connection
    await pace.wait()
    async for request in requests:
        if memory.is_overdrawn(client):
            yield request, None
        else:
            held = memory.hold(client, size_of(request))
            try:
                await pace.wait()  # for what other streams have used since this one waits for a request
            except BaseException:
                held.drop()
                raise
            pace.note_request()
            yield request, held
        await memory.wait_for_room(client)
        await pace.wait()


@contextlib.contextmanager
def auditing_end(
    access: Access, call: Callable[[Access], Any], ending_of: Callable[[Exception], str | None]
) -> Iterator[None]:
    """Audit a call that ends without an answer, in the middle of its work or before it. `call`: its handler, with its
    request. `ending_of`: how the protocol says that an error ended it; None if the error says that its work did not
    begin."""
    try:
        yield
    except (InvalidArgument, OverQuota, NotController):
        raise
    except (asyncio.CancelledError, GeneratorExit):  # the latter of several answers, between two of them
        access.state_changes(call)
        access.changes.report_unknown(NO_ANSWER)
        raise
    except Exception as failure:
        ending = ending_of(failure)
        if ending is not None:
            access.state_changes(call)
            access.changes.report_unknown(f"the call ended with {ending}: it may be done")
        raise
