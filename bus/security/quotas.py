"""The kinds of quotas, their values, and changes of a set of quotas.

Guards one promise: a quota that is accepted has an effect. Kafka's two that cannot have one here are refused by name,
with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bus.client_texts import CLIENT_ID_BYTES_MAX, check_text, check_user
from bus.descriptions import ANY_NAME, DEFAULT_NAME, NoName, QuotaEntity
from bus.errors import ErrorCode, Refused, did_you_mean, near_names, show_names

USER, CLIENT_ID = "user", "client-id"
ENTITY_TYPES = (USER, CLIENT_ID)
USER_BYTES_MAX = 1_024


def check_entity(entity: QuotaEntity) -> Refused | None:
    for what, name, bytes_max in (
        ("a user", entity.user, USER_BYTES_MAX),
        ("a client id", entity.client_id, CLIENT_ID_BYTES_MAX),
    ):
        refused = check_text(what, name, bytes_max) if isinstance(name, str) else None
        if refused is not None:
            return refused
    return check_user("a user", entity.user) if isinstance(entity.user, str) else None


def encode_entity(entity: QuotaEntity) -> str:
    """JSON, in which null stands for the default."""
    return json.dumps(names_of(entity))


def decode_entity(text: str) -> QuotaEntity:
    """Raises `ValueError` for anything but the text of an entity."""
    found: Any = json.loads(text)
    is_right = isinstance(found, dict) and bool(found) and found.keys() <= set(ENTITY_TYPES)
    if not is_right or not all(name is None or isinstance(name, str) for name in found.values()):
        raise ValueError(f"expected a user, a client id or both, found {text!r}")
    return entity_of(found)


def entity_of(names: Mapping[str, str | None]) -> QuotaEntity:
    """`names` by type of entity, None for the default; with at least one of the known types."""
    parts = {kind: DEFAULT_NAME if name is None else name for kind, name in names.items()}
    return QuotaEntity(parts.get(USER), parts.get(CLIENT_ID))


def names_of(entity: QuotaEntity) -> dict[str, str | None]:
    """The reverse of `entity_of`."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return {kind: name if isinstance(name, str) else None for kind, name in named if name is not None}


def find_quota(quotas: Mapping[QuotaEntity, float], user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
    """Find the quota of one kind that applies to a caller, by Kafka's precedence, and the entity that its meter belongs
    to, by names only. All connections that share a meter share its quota: all connections of the user if the quota is a
    user's, those of the pair if it is a pair's."""
    for entity, sharing in _candidates(user, client_id):
        limit = quotas.get(entity)
        if limit is not None:
            return sharing, limit
    return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """From the most specific one on."""
    for entity_user in (user, DEFAULT_NAME):
        yield QuotaEntity(entity_user, client_id), QuotaEntity(user, client_id)
        yield QuotaEntity(entity_user, DEFAULT_NAME), QuotaEntity(user, client_id)
        yield QuotaEntity(entity_user), QuotaEntity(user)
    yield QuotaEntity(client_id=client_id), QuotaEntity(client_id=client_id)
    yield QuotaEntity(client_id=DEFAULT_NAME), QuotaEntity(client_id=client_id)


PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
REQUEST_RATE = "request_rate"
QUOTA_NAMES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, REQUEST_RATE)
_WHOLE = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
_ABSENT: Mapping[str, str] = {
    "request_percentage": "one event loop serves all callers and cannot tell their shares of the processor apart; "
    f"{REQUEST_RATE} limits requests per second",
    "connection_creation_rate": "gRPC does not show the broker when connections are made",
}
_LIMIT_MAX = 2.0**53  # above it a number would not be kept exactly
ENTITIES_MAX = 10_000

Quotas = Mapping[str, float]  # the quotas of one entity by name; never empty where it is stored


@dataclass(frozen=True, slots=True)
class AlterQuotas:
    """None: the quota goes. `validate_only`: nothing changes."""

    entity: QuotaEntity
    changes: Mapping[str, float | None]
    validate_only: bool = False


def alter_quotas(known: Mapping[QuotaEntity, Quotas], command: AlterQuotas) -> Quotas | Refused:
    """The quotas of the entity after all changes, or the reason why none is done."""
    refused = check_entity(command.entity)
    if refused is not None:
        return refused
    before = known.get(command.entity, {})
    if not before and any(limit is not None for limit in command.changes.values()) and len(known) >= ENTITIES_MAX:
        return Refused(ErrorCode.POLICY_VIOLATION, f"expected quotas of at most {ENTITIES_MAX} entities")
    after = dict(before)
    for name, limit in command.changes.items():
        refused = _check(name, limit)
        if refused is not None:
            return refused
        if limit is None:
            after.pop(name, None)
        else:
            after[name] = limit
    return after


def _check(name: str, limit: float | None) -> Refused | None:
    if name in _ABSENT:
        return Refused(ErrorCode.INVALID_REQUEST, f"{name}: there is none here: {_ABSENT[name]}")
    if name not in QUOTA_NAMES:
        meant = did_you_mean(near_names(name, QUOTA_NAMES))
        message = f"expected a quota among {', '.join(QUOTA_NAMES)}, found {show_names([name])}{meant}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if limit is None:
        return None
    if not (math.isfinite(limit) and 0 < limit <= _LIMIT_MAX):
        message = f"{name}: expected a number above 0 and up to 2^53, found {limit}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if name in _WHOLE and limit != int(limit):
        return Refused(ErrorCode.INVALID_REQUEST, f"{name}: expected whole bytes per second, found {limit}")
    return None


def encode_quotas(quotas: Quotas) -> str:
    return json.dumps(dict(sorted(quotas.items())))


def decode_quotas(text: str) -> Quotas:
    """Raises `ValueError` for anything but quotas by name. A name that this version does not know is kept."""
    found: Any = json.loads(text)
    if not isinstance(found, dict) or not found or not all(_is_number(limit) for limit in found.values()):
        raise ValueError(f"expected quotas by name, found {text!r}")
    return {name: float(limit) for name, limit in found.items()}


def _is_number(limit: object) -> bool:
    return isinstance(limit, (int, float)) and not isinstance(limit, bool) and math.isfinite(limit) and limit > 0


def by_name(known: Mapping[QuotaEntity, Quotas]) -> dict[str, dict[QuotaEntity, float]]:
    """The same quotas, for look-ups of one kind."""
    found: dict[str, dict[QuotaEntity, float]] = {}
    for entity, quotas in known.items():
        for name, limit in quotas.items():
            found.setdefault(name, {})[entity] = limit
    return found


def matches(entity: QuotaEntity, wanted: Mapping[str, str | NoName], *, is_strict: bool) -> bool:
    """True if the entity matches Kafka's filter. `wanted`: a name, `DEFAULT_NAME` or `ANY_NAME`, by type of entity; the
    entity must have all of these parts. `is_strict`: and no others."""
    parts = {USER: entity.user, CLIENT_ID: entity.client_id}
    for kind, name in wanted.items():
        part = parts.pop(kind)
        if part is None or (name is not ANY_NAME and part != name):
            return False
    return not is_strict or all(part is None for part in parts.values())
