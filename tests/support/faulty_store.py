"""A store of which one call fails, before its effect, after it, or with the process."""

from __future__ import annotations

from enum import Enum
from typing import Any

from bus.errors import StorageFault
from bus.storage_delta.stores.store import OutcomeUnknown
from tests.support.memory_store import MemoryStore

CHANGES = {"create", "confirm", "write_unique", "write_parts", "put", "delete", "delete_folder", "sync"}


class Crashed(BaseException):
    """The process is gone."""


class Fault(Enum):
    BEFORE = "before its effect"
    AFTER = "after its effect"
    AFTER_UNKNOWN = "after its effect, and the store says that it does not know"
    BUG = "after its effect, with an exception that nothing expects"
    CRASH = "the process dies after it"


class FaultyStore:
    """Fails the call of the number `at`; `at` None: counts them."""

    def __init__(self, store: MemoryStore, at: int | None, fault: Fault) -> None:
        self._store = store
        self._at = at
        self._fault = fault
        self.calls: list[str] = []
        self.is_armed = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            is_due = self.is_armed and len(self.calls) == self._at
            if self.is_armed:
                self.calls.append(name)
            if is_due and self._fault is Fault.BEFORE:
                raise StorageFault(f"{name} failed")
            result = found(*args, **options)
            if is_due:
                raise _FAULTS[self._fault]
            return result

        return call


_FAULTS: dict[Fault, BaseException] = {
    Fault.AFTER: StorageFault("reported an error"),
    Fault.AFTER_UNKNOWN: OutcomeUnknown("no answer"),
    Fault.BUG: RuntimeError("a bug"),
    Fault.CRASH: Crashed(),
}
