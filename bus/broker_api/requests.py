"""What requests of all kinds have in common: who asks, items that are counted before they are looked at, and what ends
a request without an answer."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.model import PLAINTEXT

ItemT_co = TypeVar("ItemT_co", covariant=True)


class InvalidArgument(ValueError):
    """A request that says something that no call of its kind can mean; the message names what was expected."""


class BrokerStopping(Exception):
    """The broker goes away before an answer is there."""


class Unavailable(Exception):
    """The broker cannot answer for now; the message says why."""


class OverQuota(Exception):
    """The caller would have to wait for its quota for longer than it does; the message says which one, and how long."""


class TakesLong(Exception):
    """Raised by what tries to do a request's work on the event loop: it is more than should be done there in one go."""


ANONYMOUS = "User:ANONYMOUS"  # of an unauthenticated caller, as Kafka names it


@dataclass(frozen=True, slots=True)
class Caller:
    """`connection` tells callers apart where the broker's memory and threads are shared out. `host` is as Kafka prints
    it, "/127.0.0.1". `request_id` is in all log lines about the request. `listener` is the name of the one that the
    call came by."""

    connection: Hashable
    host: str
    request_id: str
    principal: str = ANONYMOUS  # "User:<name>", by the certificate that was shown
    client_id: str = ""  # as the client says; the program's name, and no proof of anything
    listener: str = PLAINTEXT


# Of the call at hand, where it changes the cluster metadata: also at the controller, to which another broker sent it.
current_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Items(Protocol[ItemT_co]):
    """Of a request, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ItemT_co]: ...


def new_request_id() -> str:
    return secrets.token_hex(4)
