"""To whom a quota applies: a user, a client id, or both, each by its name or as the default for those without one.

Guards one promise: for each caller and each kind of quota there is one that holds, by Kafka's precedence, or none. All
connections of the callers that share a meter share its quota: where the quota is a user's, all of the user's; where it
is a pair's, those of the pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from bus.client_texts import CLIENT_ID_BYTES_MAX, check_text, check_user
from bus.errors import Refused

USER, CLIENT_ID = "user", "client-id"
ENTITY_TYPES = (USER, CLIENT_ID)
USER_BYTES_MAX = 1_024


class Default(Enum):
    """Stands for all names that have no quota of their own."""

    NAME = "<default>"

    def __repr__(self) -> str:
        return self.value


DEFAULT: Final = Default.NAME
Part = str | Default | None  # None: the entity has no such part


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """At least one of the two parts is there."""

    user: Part = None
    client_id: Part = None

    def __str__(self) -> str:
        """As Kafka's command prints it."""
        return ", ".join(
            f"the default {what}" if name is DEFAULT else f"{what} '{name}'"
            for what, name in (("user-principal", self.user), ("client-id", self.client_id))
            if name is not None
        )


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
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return json.dumps({kind: None if name is DEFAULT else name for kind, name in named if name is not None})


def decode_entity(text: str) -> QuotaEntity:
    """Raises `ValueError` for anything but the text of an entity."""
    found: Any = json.loads(text)
    is_right = isinstance(found, dict) and bool(found) and found.keys() <= set(ENTITY_TYPES)
    if not is_right or not all(name is None or isinstance(name, str) for name in found.values()):
        raise ValueError(f"expected a user, a client id or both, found {text!r}")
    return entity_of(found)


def entity_of(names: Mapping[str, str | None]) -> QuotaEntity:
    """`names` by type of entity, None for the default; with at least one of the known types."""
    parts = {kind: DEFAULT if name is None else name for kind, name in names.items()}
    return QuotaEntity(parts.get(USER), parts.get(CLIENT_ID))


def names_of(entity: QuotaEntity) -> dict[str, str | None]:
    """The reverse of `entity_of`."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return {kind: None if name is DEFAULT else name for kind, name in named if name is not None}


def find_quota(quotas: Mapping[QuotaEntity, float], user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
    """Of one kind of quota: the one that holds for a caller, and the entity whose meter it is about, by names only."""
    for entity, sharing in _candidates(user, client_id):
        limit = quotas.get(entity)
        if limit is not None:
            return sharing, limit
    return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """From the most specific one on."""
    for entity_user in (user, DEFAULT):
        yield QuotaEntity(entity_user, client_id), QuotaEntity(user, client_id)
        yield QuotaEntity(entity_user, DEFAULT), QuotaEntity(user, client_id)
        yield QuotaEntity(entity_user), QuotaEntity(user)
    yield QuotaEntity(client_id=client_id), QuotaEntity(client_id=client_id)
    yield QuotaEntity(client_id=DEFAULT), QuotaEntity(client_id=client_id)
