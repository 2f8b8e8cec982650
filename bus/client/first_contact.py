"""The choice whether a client waits for a broker, or a topic, that was never there.

A program waits, as with Kafka: it may be started before its broker, and time-outs say for how long. A command of a
shell does not: it reports a wrong address or name at once. Imports nothing of the bus, since every command of the shell
imports it, `bus --help` included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_broker_needed: ContextVar[bool] = ContextVar("is_broker_needed", default=False)


def is_broker_needed() -> bool:
    return _is_broker_needed.get()


@contextmanager
def broker_needed() -> Iterator[None]:
    """Clients that are made in here fail at once if their first contact finds no broker, or a producer's no topic."""
    token = _is_broker_needed.set(True)
    try:
        yield
    finally:
        _is_broker_needed.reset(token)
