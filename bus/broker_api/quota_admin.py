"""Quotas for administrators: which there are, changes of them, and what is used of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.broker_api.client_quotas import ClientQuotas, QuotaUsage
from bus.client_quotas.entities import CLIENT_ID, ENTITY_TYPES, USER, Part, QuotaEntity
from bus.client_quotas.quotas import AlterQuotas, Quotas, matches
from bus.errors import ErrorCode, Refused, show_names
from bus.runtime.cluster import Cluster

Parts = Sequence[tuple[str, Part]]  # by type; None in a filter: any name


class QuotaAdminApi:
    def __init__(self, cluster: Cluster, quotas: ClientQuotas) -> None:
        self._cluster = cluster
        self._quotas = quotas

    def describe(self, parts: Parts, *, is_strict: bool) -> Mapping[QuotaEntity, Quotas] | Refused:
        """Of the entities that match."""
        refused = _check_types(parts)
        if refused is not None:
            return refused
        known, wanted = self._cluster.state.quotas, dict(parts)
        return {entity: known[entity] for entity in known if matches(entity, wanted, is_strict=is_strict)}

    async def alter(
        self, alterations: Sequence[tuple[Parts, Sequence[tuple[str, float | None]]]], *, validate_only: bool
    ) -> list[Refused | None]:
        """An answer for each, in order. An entity that is named again is refused."""
        answers: list[Refused | None] = []
        commands: list[AlterQuotas] = []
        for parts, changes in alterations:
            command = _command(parts, changes, validate_only)
            if isinstance(command, AlterQuotas) and any(one.entity == command.entity for one in commands):
                command = Refused(ErrorCode.INVALID_REQUEST, f"expected each entity once, found {command.entity} again")
            if isinstance(command, AlterQuotas):
                commands.append(command)
            answers.append(command if isinstance(command, Refused) else None)
        outcomes = iter(await self._cluster.controller.alter_quotas(commands) if commands else ())
        return [answer or _refusal(next(outcomes)) for answer in answers]

    def usage(self) -> list[QuotaUsage]:
        return self._quotas.usage()


def _command(parts: Parts, changes: Sequence[tuple[str, float | None]], validate_only: bool) -> AlterQuotas | Refused:
    refused = _check_types(parts) or _check_once("quota", [name for name, _ in changes])
    if refused is not None:
        return refused
    if not parts:
        return Refused(ErrorCode.INVALID_REQUEST, "expected a user, a client id or both, found neither")
    named = dict(parts)
    return AlterQuotas(QuotaEntity(named.get(USER), named.get(CLIENT_ID)), dict(changes), validate_only)


def _check_types(parts: Parts) -> Refused | None:
    unknown = [kind for kind, _ in parts if kind not in ENTITY_TYPES]
    if "ip" in unknown:
        message = "ip: there are no quotas of addresses here: gRPC does not show the broker when connections are made"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if unknown:
        message = f"expected types of entities among {', '.join(ENTITY_TYPES)}, found {show_names(unknown)}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    return _check_once("type of entity", [kind for kind, _ in parts])


def _check_once(what: str, names: Sequence[str]) -> Refused | None:
    again: Iterable[str] = [name for place, name in enumerate(names) if name in names[:place]]
    for name in again:
        return Refused(ErrorCode.INVALID_REQUEST, f"expected each {what} once, found {show_names([name])} again")
    return None


def _refusal(answer: Quotas | Refused) -> Refused | None:
    return answer if isinstance(answer, Refused) else None
