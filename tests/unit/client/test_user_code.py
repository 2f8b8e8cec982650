from __future__ import annotations

import logging
from typing import Any

import pytest

from bus.client.user_code import asks_for, close_all


class Closing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = errors
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        for error in self.errors:
            raise error


def test_each_is_closed_once_whoever_fails(caplog: pytest.LogCaptureFixture) -> None:
    clinging, shared = Closing(OSError("held")), Closing()
    with caplog.at_level(logging.ERROR):
        close_all({"key_serializer": clinging, "value_serializer": shared, "partitioner": shared, "other": None})
    assert (clinging.closed, shared.closed) == (1, 1)
    assert "closing key_serializer failed" in caplog.text
    assert "held" in caplog.text


def test_functions_and_classes_are_not_closed() -> None:
    close_all({"key_serializer": len, "value_serializer": Closing, "partitioner": "round_robin"})


def test_parameter_that_can_be_given_by_name_is_asked_for() -> None:
    def takes_everything(*args: Any, **kwargs: Any) -> None: ...

    assert asks_for(lambda topic, available: 0, "available")
    assert asks_for(lambda topic, *, available=None: 0, "available")
    assert not asks_for(takes_everything, "available")
    assert not asks_for(int, "available")
