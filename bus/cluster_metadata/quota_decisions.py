"""What may be done to the quotas of clients, and which records do it."""

from __future__ import annotations

from bus.client_quotas.entities import encode_entity
from bus.client_quotas.quotas import AlterQuotas, Quotas, alter_quotas, encode_quotas
from bus.cluster_metadata.cluster import ClusterState
from bus.cluster_metadata.cluster_records import BUS_VERSION, LEVEL_OF_SECURITY, ClientQuotaChanged, ClusterRecord
from bus.errors import ErrorCode, Refused
from bus.model import Step


def decide_alter_quotas(state: ClusterState, command: AlterQuotas) -> Step[ClusterRecord, Quotas | Refused]:
    """The response has the quotas of the entity from then on.

    Refused: INVALID_REQUEST (a name, a value, an entity that cannot be), POLICY_VIOLATION (too many entities),
    UNSUPPORTED_VERSION (the level has no record for quotas).
    """
    before = state.quotas.get(command.entity, {})
    after = alter_quotas(state.quotas, command)
    if isinstance(after, Refused) or command.validate_only or after == before:
        return Step(after)
    if state.level < LEVEL_OF_SECURITY:
        return Step(_refuse_level(state.level))
    record = ClientQuotaChanged(encode_entity(command.entity), encode_quotas(after) if after else None)
    return Step(after, (record,))


def _refuse_level(level: int) -> Refused:
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"quotas need {BUS_VERSION} {LEVEL_OF_SECURITY}, found {level}: run bus cluster features upgrade once all "
        "brokers are of this version",
    )
