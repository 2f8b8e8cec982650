"""Arguments of the clients' calls: what is no argument of a call is refused before anything is done.

Guards one promise: a refusal says what was expected and what was found, and nothing that a user could give by mistake
is taken for something else: a single name for a list of its letters, a truth value for a number, bytes for text. What
only a broker can know (a topic that does not exist, a config out of range) is the broker's to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from typing import Any, TypeVar

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.settings.keys import INT_MAX, LONG_MAX, config_text, is_text

INT_64_MAX = LONG_MAX
_MILLISECONDS_MAX = 10**12  # more is for ever, and more than the clocks of threads take

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class WrongType(BusError, TypeError):
    """An argument of another type than expected."""


class WrongValue(BusError, ValueError):
    """An argument of the right type that cannot be."""


def wrong_type(expected: str, found: Any, hint: str = "") -> WrongType:
    return WrongType(ErrorCode.INVALID_REQUEST, _expected_type(expected, found, hint))


def no_record(expected: str, found: Any, hint: str = "") -> TypeError:
    """Return the error for an argument that makes no record: Python's own type, because nothing of the bus is at
    fault."""
    return TypeError(_expected_type(expected, found, hint))


def _expected_type(expected: str, found: Any, hint: str) -> str:
    return f"expected {expected}, found {_kind_of(found)}{hint and ': '}{hint}"


def wrong_value(expected: str, found: Any) -> WrongValue:
    return WrongValue(ErrorCode.INVALID_REQUEST, f"expected {expected}, found {found!r}")


def _kind_of(found: Any) -> str:
    return "None" if found is None else type(found).__name__


def check_text(name: str, value: Any) -> str:
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        raise wrong_type(f"{name} as text", value, "decode it" if isinstance(value, bytes) else "")
    if not is_text(value):
        raise wrong_value(f"{name} as text that has a form in UTF-8", value)
    return value


def check_topic(topic: Any) -> str:
    return check_text("topic", topic)


def check_integer(name: str, value: Any, minimum: int = -INT_MAX - 1, maximum: int = INT_MAX) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(f"{name} as an integer", value)
    if not minimum <= value <= maximum:
        raise wrong_value(f"{name} from {minimum} to {maximum}", value)
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(f"{name} as True or False", value)
    return value


def check_milliseconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(f"{name} as a number of milliseconds", value)
    if math.isnan(value) or value < 0:
        raise wrong_value(f"{name} of 0 milliseconds or more", value)
    return min(value, _MILLISECONDS_MAX)


def check_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """Seconds, or None: as long as it takes."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise wrong_type(f"{name} in seconds, or None", timeout)
    if math.isnan(timeout) or timeout < 0:
        raise wrong_value(f"{name} of 0 seconds or more", timeout)
    return timeout


def check_items(name: str, value: Any, check: Callable[[str, Any], ItemT], kind: str) -> list[ItemT]:
    """Each item of a list, a set, the keys of a mapping ...; `kind`: what they are, for people."""
    is_single = isinstance(value, (str, bytes, TopicPartition))
    if is_single or not isinstance(value, Iterable):
        hint = f"give [{value!r}]" if is_single else ""
        raise wrong_type(f"{name} as a list of {kind}", value, hint)
    return [check(f"an item of {name}", item) for item in value]


def check_texts(name: str, value: Any) -> list[str]:
    return check_items(name, value, check_text, "text")


def check_mapping(
    name: str, value: Any, check_key: Callable[[str, Any], KeyT], check_value: Callable[[str, Any], ValueT], kind: str
) -> dict[KeyT, ValueT]:
    """`kind`: from what to what it maps, for people."""
    if not isinstance(value, Mapping):
        raise wrong_type(f"{name} as a mapping {kind}", value)
    return {check_key(f"a key of {name}", key): check_value(f"{name}[{key!r}]", item) for key, item in value.items()}


def check_topic_partition(name: str, value: Any) -> TopicPartition:
    if not isinstance(value, TopicPartition):
        raise wrong_type(f"{name} as a TopicPartition", value)
    check_text(f"the topic of {name}", value.topic)
    check_integer(f"the partition of {name}", value.partition)
    return value


def check_topic_partitions(name: str, value: Any) -> list[TopicPartition]:
    return check_items(name, value, check_topic_partition, "TopicPartition")


def offsets_by_partition(
    name: str, value: Any, check_value: Callable[[str, Any], ValueT]
) -> dict[TopicPartition, ValueT]:
    return check_mapping(name, value, check_topic_partition, check_value, "from TopicPartition to offset")


def check_config_value(name: str, value: Any) -> str:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(item, (str, Number)):
            raise wrong_type(f"{name} as text, a number, True or False, or a list of them", item)
    return check_text(name, config_text(value))


def check_configs(name: str, value: Any) -> dict[str, str]:
    return check_mapping(name, value, check_text, check_config_value, "from config to value")
