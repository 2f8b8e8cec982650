"""Which names a topic may have.

Guards two promises: a name is safe as a folder and in every client that Kafka's names are safe in, and the bus's own
topics stay its own. Kafka's rules (org.apache.kafka.common.internals.Topic); knows no cluster.
"""

from __future__ import annotations

import re

from bus.errors import ErrorCode, Refused
from bus.model import INTERNAL_TOPIC_PREFIX

TOPIC_NAME_LENGTH_MAX = 249  # Kafka's: with a partition's suffix it is still a file name
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> Refused | None:
    """None if the name is legal: 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither "." nor ".."."""
    if not name:
        return _invalid("expected a topic name, found an empty one")
    if name in (".", ".."):
        return _invalid(f"expected a topic name other than . and .., found {name}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return _invalid(f"expected a topic name of at most {TOPIC_NAME_LENGTH_MAX} characters, found {len(name)}")
    if _LEGAL_NAME.fullmatch(name) is None:
        return _invalid(f"expected a topic name of a-z, A-Z, 0-9, '.', '_' and '-', found {name!r}")
    return None


def is_internal_topic(name: str) -> bool:
    return name.startswith(INTERNAL_TOPIC_PREFIX)


def check_not_internal(name: str) -> Refused | None:
    """None if users may create, change and delete a topic of this name."""
    if is_internal_topic(name):
        return _invalid(f"topics that begin with {INTERNAL_TOPIC_PREFIX} belong to the bus itself, found {name!r}")
    return None


def collision_key(name: str) -> str:
    """Two names with one key collide: metric names turn '.' into '_', and such topics could not be told apart there."""
    return name.replace(".", "_")


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
