"""Which records change the access control lists.

To add a binding that is there, or to remove by a filter that finds none, changes nothing and is no error, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.authorization.acls import ANY_NAME, AclBinding, AclBindingFilter, AclResourceType, PatternType, check_acl
from bus.authorization.index import AclIndex
from bus.cluster_metadata.cluster import ClusterState
from bus.cluster_metadata.cluster_records import (
    BUS_VERSION,
    LEVEL_OF_SECURITY,
    AclAdded,
    AclRemoved,
    ClusterRecord,
    encode_acl,
)
from bus.cluster_metadata.names import check_topic_name
from bus.errors import ErrorCode, Refused
from bus.model import Step

ACLS_MAX = 100_000
# Of ACLs with filters, in one call: half a second of the event loop.
_COMPARISONS_MAX = 1_000_000


def decide_create_acls(
    state: ClusterState, acls: Sequence[AclBinding]
) -> Step[ClusterRecord, list[Refused | None] | Refused]:
    """For each binding why it was not added, None if it is there now. Refused: INVALID_REQUEST (there can be no such
    binding), POLICY_VIOLATION (too many); as a whole: UNSUPPORTED_VERSION."""
    refused = _check_level(state)
    if refused is not None:
        return Step(refused)
    added: dict[AclBinding, None] = {}
    answers: list[Refused | None] = []
    for acl in acls:
        is_known = acl in state.acls or acl in added
        why = check_acl(acl) or _check_topic(acl) or (None if is_known else _check_count(len(state.acls) + len(added)))
        if why is None and not is_known:
            added[acl] = None
        answers.append(why)
    return Step(answers, tuple(AclAdded(encode_acl(acl)) for acl in added))


def decide_delete_acls(
    state: ClusterState, filters: Sequence[AclBindingFilter]
) -> Step[ClusterRecord, list[list[AclBinding]] | Refused]:
    """For each filter the bindings that it found, which are removed. Refused as a whole: UNSUPPORTED_VERSION,
    INVALID_REQUEST (filters that would take too long to look through so many ACLs)."""
    refused = _check_level(state) or _check_filters(filters, len(state.acls))
    if refused is not None:
        return Step(refused)
    found = [_find(state.acls, wanted) for wanted in filters]
    removed = dict.fromkeys(acl for of_filter in found for acl in of_filter)
    return Step(found, tuple(AclRemoved(encode_acl(acl)) for acl in removed))


def _find(acls: AclIndex, wanted: AclBindingFilter) -> list[AclBinding]:
    exact = wanted.exact
    if exact is not None:
        return [exact] if exact in acls else []
    return [acl for acl in acls if wanted.matches(acl)]


def _check_filters(filters: Sequence[AclBindingFilter], known: int) -> Refused | None:
    count, count_max = sum(wanted.exact is None for wanted in filters), _COMPARISONS_MAX // max(1, known)
    if count <= count_max:
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected at most {count_max} filters in a call while there are {known:,} ACLs, beside those that name a "
        f"single ACL, found {count}",
    )


def _check_topic(acl: AclBinding) -> Refused | None:
    """A pattern that no topic's name can match, as one with a blank behind it, would have no effect."""
    name, is_prefix = acl.resource_name, acl.pattern_type is PatternType.PREFIXED
    if acl.resource_type is not AclResourceType.TOPIC or (name == ANY_NAME and not is_prefix):
        return None
    if is_prefix and name == ANY_NAME:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            "expected what names of topics begin with, found '*', which stands for all topics as a literal name only",
        )
    begins_names = is_prefix and name in (".", "..")
    refused = None if begins_names else check_topic_name(name)
    return None if refused is None else Refused(ErrorCode.INVALID_REQUEST, refused.message)


def _check_level(state: ClusterState) -> Refused | None:
    if state.level >= LEVEL_OF_SECURITY:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"ACLs need {BUS_VERSION} {LEVEL_OF_SECURITY}, found {state.level}: run bus cluster features upgrade once all "
        "brokers are of this version",
    )


def _check_count(known: int) -> Refused | None:
    if known < ACLS_MAX:
        return None
    return Refused(ErrorCode.POLICY_VIOLATION, f"expected at most {ACLS_MAX:,} ACLs, found as many")
