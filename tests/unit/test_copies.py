"""Errors and records cross processes and are copied: pools, Spark's workers and task queues pickle them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import bus
import bus.client.interceptors
import bus.client.values
import bus.model
import bus.security.acls
from bus.client.consumer.records import RecordDeserializationError
from bus.client.values import ConsumerRecord
from bus.errors import BusError, ErrorCode
from bus.grpc_api.server.records.produce_decoding import TooManyItems
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest
from bus.grpc_api.value_messages import UnknownWord
from bus.model import TimestampType, TopicPartition
from bus.ports import Conflicted, FenceLost
from bus.processing.transactional_output import OutputRefused
from bus.processing.work import RecordFailed, RunSummary
from bus.security.oauth.documents import DocumentFault
from bus.settings.keys import WrongSetting
from bus.storage_delta.files import trials
from bus.storage_delta.stores.store import KeyLocked

RECORD = ConsumerRecord("t", 1, 7, 1_000, TimestampType.CREATE_TIME, b"k", b"v", (("h", None),), 3)
SUMMARY = RunSummary(1, 0, 0, 0, 0, 1, {TopicPartition("t", 1): 8}, 5, "error")
# What the classes are made of that take more than a message; all others are made of one.
ARGUMENTS: dict[type[BaseException], tuple[Any, ...]] = {
    RecordDeserializationError: (RECORD, "value", ValueError("found x")),
    RecordFailed: (RECORD, ValueError("found x"), SUMMARY),
    OutputRefused: ("an outcome", ValueError("found x")),
    FenceLost: ("found a version", Conflicted(3, None, "WRITE")),
    KeyLocked: ("broker 1",),
    TooManyItems: ("ProduceRequest", 3),
    UnreadableRequest: (Unreadable(grpc.StatusCode.INVALID_ARGUMENT, "found x"),),
    WrongSetting: ("linger.ms", "a number", "'x'"),
    DocumentFault: ("found 503", 503, b"later"),
    UnknownWord: ("found x",),
    trials._Ended: (None,),
}
COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in range(6)),
]


def classes() -> Iterator[type]:
    """All that the package defines."""
    for module in pkgutil.walk_packages(bus.__path__, "bus."):
        if "__main__" not in module.name:
            for found in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(found) and found.__module__ == module.name:
                    yield found


def error_classes() -> list[type[BaseException]]:
    return [found for found in classes() if issubclass(found, BaseException)]


def made(kind: type[BaseException]) -> BaseException:
    if issubclass(kind, BusError) and kind not in ARGUMENTS:
        return kind(ErrorCode.INVALID_REQUEST, "found x")
    return kind(*ARGUMENTS.get(kind, ("found x",)))


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__qualname__)
def test_error_is_copied_and_pickled_as_what_it_was(kind: type[BaseException]) -> None:
    error = made(kind)
    error.note = "of the one who caught it"  # type: ignore[attr-defined]
    for copied in [make(error) for make in COPIES]:
        assert type(copied) is kind
        assert (str(copied), repr(copied), copied.args) == (str(error), repr(error), error.args)
        assert repr(vars(copied)) == repr(vars(error))


def record_classes() -> list[type]:
    public = {getattr(bus, name) for name in bus.__all__ if name != "__version__"}
    for module in (bus.client.values, bus.client.interceptors, bus.model, bus.security.acls):
        public |= {found for found in vars(module).values() if inspect.isclass(found)}
    return sorted((found for found in public if fields_of(found)), key=lambda found: found.__qualname__)


def fields_of(kind: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", ()) if inspect.isclass(kind) else ()


@pytest.mark.parametrize("kind", record_classes(), ids=lambda kind: kind.__qualname__)
def test_record_is_copied_and_pickled_as_what_it_was(kind: type) -> None:
    """Its fields are what they may be: only that they arrive is looked at."""
    names = fields_of(kind)
    if issubclass(kind, tuple):
        record = kind._make(names)  # type: ignore[attr-defined]
    else:
        record = object.__new__(kind)
        for name in names:
            object.__setattr__(record, name, name)
    for copied in [make(record) for make in COPIES[:2] + COPIES[4:]]:
        assert type(copied) is kind
        assert [getattr(copied, name) for name in names] == [getattr(record, name) for name in names]
