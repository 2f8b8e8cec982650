"""The steps of a call between its connection and its handler, in their order, for the adapters of all protocols.

An adapter brings what a step is in its protocol, and `assemble` puts these around a handler, so that an adapter has no
order of its own for calls of one request and one answer. The handler comes last: it decodes, calls a method of an API
with the `Access` of the caller, and encodes. That method begins with the rights of the caller: it comes after the wait
for a turn, and the ACLs of that moment decide. A call that only the controller can do is checked by the broker that was
asked, and again by the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from bus.broker_api.audit import NO_ANSWER
from bus.broker_api.authorization import Access
from bus.broker_api.requests import InvalidArgument, OverQuota
from bus.errors import NotController

Handle = Callable[..., Any]
Wrap = Callable[[Handle], Handle]  # a handler with a step before it


class Step(Enum):
    IDENTIFY = auto()
    READ = auto()
    COUNT = auto()
    HOLD_MEMORY = auto()
    GUARD = auto()
    OPEN_STREAM = auto()
    AUDIT = auto()
    PACE = auto()


STEPS: Sequence[Step] = (
    Step.IDENTIFY,  # before anything is read: no byte of a stranger's request takes memory
    Step.READ,  # the request as a whole, within the limits of its kind
    Step.COUNT,  # as a call under way, for which a broker that stops waits; one that is not read yet is refused instead
    Step.HOLD_MEMORY,  # each step behind it may wait, with the request in memory
    Step.GUARD,  # from here on the log has the request's id, and every error becomes an answer
    Step.OPEN_STREAM,  # of what gives answers for long: a caller may have so many
    Step.AUDIT,  # also of a change whose caller goes away while it waits for its turn
    Step.PACE,  # before anything is done or looked up: a caller that owes something of its quota costs nothing
)
# A stream has PACE, READ and HOLD_MEMORY for each of its requests, in this order: it is read on when its caller owes
# nothing and has room in memory. No stream of requests has AUDIT, since none changes what the audit keeps.


def assemble(wraps: Mapping[Step, Wrap], handle: Handle) -> Handle:
    """Return the handler with the steps before it that are in `wraps`, in their order."""
    for step in reversed(STEPS):
        if step in wraps:
            handle = wraps[step](handle)
    return handle


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
