"""Refusals as messages have them: every response, and every part of one that may be refused alone, has two fields."""

from __future__ import annotations

from typing import Any, TypeVar

from bus.errors import Refused

MessageT = TypeVar("MessageT", bound=Any)


def with_error(response: MessageT, refusal: Refused) -> MessageT:
    """The response, with error code and message set."""
    response.error_code, response.error_message = int(refusal.code), refusal.message
    return response
