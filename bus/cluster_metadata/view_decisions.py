"""Decisions about the views of topics, and the records that carry them out.

Guards two promises: a view that is there can be made by both engines, and its name means nothing else in SQL, unless a
topic of that name came later, which comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import ViewCreated, ViewDeleted
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.configs import check_not_internal
from bus.errors import ErrorCode, Refused
from bus.json_views import JsonView, SchemaError, check_view
from bus.model import Step

VIEWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CreateView:
    name: str
    topic: str
    schema: str  # DDL
    columns: Sequence[str] | None = None  # None: the usual ones
    replaces: bool = False  # a view of that name
    validate_only: bool = False


ViewStep = Step[ClusterRecord, JsonView | Refused]


def decide_create_view(state: ClusterState, command: CreateView) -> ViewStep:
    """Refused: INVALID_REQUEST (the name, the schema or the columns cannot be, or the name is taken),
    INVALID_TOPIC_EXCEPTION (internal: its values are columns already), UNKNOWN_TOPIC_OR_PARTITION, POLICY_VIOLATION
    (too many views)."""
    try:
        view = check_view(command.name, command.topic, command.schema, command.columns)
    except SchemaError as error:
        return _invalid(f"view {command.name!r}: {error}")
    refused = check_not_internal(command.topic) or _check_free(state, command)
    if refused is not None:
        return Step(refused)
    if command.topic not in state.topics:
        return Step(
            Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"view {command.name}: expected an existing topic, found none named {command.topic!r}",
            )
        )
    record = ViewCreated(view.name, view.topic, view.schema, ",".join(view.columns))
    return Step(view, () if command.validate_only else (record,))


def decide_delete_view(state: ClusterState, name: str) -> ViewStep:
    """Refused: INVALID_REQUEST (there is none)."""
    view = state.views.get(name.casefold())
    if view is None:
        # Without the names of the views that exist: the caller may lack the permission to see them.
        return _invalid(f"expected a view, found none named {name!r}")
    return Step(view, (ViewDeleted(view.name),))


def _check_free(state: ClusterState, command: CreateView) -> Refused | None:
    folded = command.name.casefold()
    before = state.views.get(folded)
    if before is not None and not command.replaces:
        return _invalid(f"view {before.name} exists already; it can be replaced").response
    if before is None and len(state.views) >= VIEWS_MAX:
        return Refused(ErrorCode.POLICY_VIOLATION, f"expected at most {VIEWS_MAX} views, found as many")
    topic = next((topic for topic in state.topics if topic.casefold() == folded), None)
    if topic is not None:
        return _invalid(f"expected a name that no topic has, found {command.name!r} and a topic {topic}").response
    return None


def _invalid(message: str) -> Step[ClusterRecord, Refused]:
    return Step(Refused(ErrorCode.INVALID_REQUEST, message))
