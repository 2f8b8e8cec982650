"""The error codes of the bus and the exceptions that carry them.

Codes, names and retriable flags are Kafka's (org.apache.kafka.common.protocol.Errors), so that a client written for
Kafka's rules reacts correctly here. A refusal is an `ErrorCode` returned as a value; an outside fault is a
`StorageFault` raised by an adapter and translated once, in the runtime; `BusError` is what the SDK raises.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any


class ErrorCode(IntEnum):
    """Kafka's numbers and names; `retriable` says whether the same request may succeed later."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128

    @property
    def is_retriable(self) -> bool:
        return self in _RETRIABLE


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


_NAMES_MAX = 8
_NAME_LENGTH_MAX = 100


def show_names(names: Iterable[str]) -> str:
    """Join names for a message: those from a client may be long, and many."""
    shown = [name[:_NAME_LENGTH_MAX] for name in islice(names, _NAMES_MAX + 1)]
    return ", ".join(shown[:_NAMES_MAX]) + (" ..." if len(shown) > _NAMES_MAX else "")


def show_range(low: int, high: int) -> str:
    """Show a range in a message: `expected a partition from 0 to 3`, or `expected a partition that is 0` where there is
    one."""
    return f"from {low} to {high}" if low < high else f"that is {low}" if low == high else "that there is, none yet"


@dataclass(frozen=True, slots=True)
class Refused:
    """An expected refusal, as a value. `message`: lower case, what was expected and what was found."""

    code: ErrorCode
    message: str

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def reduce_error(error: BaseException) -> tuple[Any, ...]:
    """The `__reduce__` of an exception whose `__init__` takes more than the message: a copy has the same `args` and the
    same attributes, and `__init__` is not called. It survives pickling by any protocol and both kinds of copies;
    `__cause__` and `__traceback__` stay behind, as those of every exception do."""
    return copyreg.__newobj__, (type(error), *error.args), dict(error.__dict__)  # type: ignore[attr-defined]


class BusError(Exception):
    """The error of the SDK: `code`, its `name`, whether it is `retriable`, and a message that says what was found."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message

    __reduce__ = reduce_error

    @property
    def name(self) -> str:
        return self.code.name

    @property
    def retriable(self) -> bool:
        return self.code.is_retriable


class StorageFault(Exception):
    """The store did not do what it was asked. Nothing was committed unless a commit outcome says otherwise."""


class StorageFull(StorageFault):
    """No room in the store (ENOSPC, EDQUOT, EFBIG). What was half written has been removed again."""


class StorageDamaged(StorageFault):
    """Damage: the store's contents break a promise of the log, and continuing would lose or invent an acknowledged
    record.

    The message names the file, the version and what was expected. The partition stops; the others serve on.
    """


class VersionReplaced(StorageDamaged):
    """Another program has replaced an acknowledged version by one of its own.

    The message names both, and the remedy. The partition stops.
    """


def show_way_out(topic: str, partition: int) -> str:
    """Return the remedy that the message of a `StorageDamaged` gives to its reader."""
    name = f"{topic}/{partition}"
    return f"`bus log verify {name}` tells all that is damaged, `bus log repair {name}` mends it"


class RecordsDamaged(StorageDamaged):
    """A data file cannot be read, or a part of it; what else the table holds is as good as before.

    The message names the file and its offsets. The partition serves the rest.
    """


class RootInUse(StorageFault):
    """Another living process holds this root, or serves it as the same broker."""


class RootLost(StorageFault):
    """The root no longer belongs to this broker: its folder was removed, or removed and created again. Nothing was
    written there."""


class JoinRefused(StorageFault):
    """The controller does not take this broker into the cluster, and asking again would not help."""


class NotController(Exception):
    """Only the controller can do this, and this broker is not the controller. The call may be repeated."""


class RootNotUsable(StorageFault):
    """The path is no bus root, is not writable, was written by a newer version, or its file system lacks what the log
    is built on."""


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def near_names(name: str, known: Iterable[str], *, count_max: int = 1, likeness_min: float = 0.6) -> list[str]:
    """Return those of `known` that are written so much like `name` that one of them may be meant, the nearest first."""
    return difflib.get_close_matches(name, list(known), count_max, likeness_min)


def did_you_mean(meant: Iterable[str], *, before: str = "; ") -> str:
    """Return `; did you mean a or b?`, to stand behind what was found; nothing if nothing is near. `before`: what
    stands between them."""
    names = " or ".join(meant)
    return f"{before}did you mean {names}?" if names else ""


def first_line(error: BaseException) -> str:
    """Return what happened, without the further lines that libraries add."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
