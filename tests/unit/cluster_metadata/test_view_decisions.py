"""Views of topics: what may be created, what is stored of it, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bus.cluster_metadata.cluster_decisions import (
    VIEWS_MAX,
    CreateView,
    ViewStep,
    decide_create_view,
    decide_delete_view,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    TopicCreated,
    TopicDeleted,
    ViewCreated,
    ViewDeleted,
    apply,
    encode_record,
    replay_cluster,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.json_views import JsonView

RECORDS: list[ClusterRecord] = [
    BrokerRegistered(0, "a", 1),
    TopicCreated("flights", "id-1", 4, 0),
    TopicCreated("Orders", "id-2", 1, 0),
    TopicCreated("__consumer_offsets", "id-3", 1, 0),
]
COMMAND = CreateView("delays", "flights", "carrier string, delay integer")
USUAL = ("partition", "offset", "timestamp", "key", "_corrupt")


def state_after(*records: ClusterRecord) -> ClusterState:
    state = EMPTY_CLUSTER
    for record in [*RECORDS, *records]:
        state = apply(state, record)
    return state


def refusal(step: ViewStep) -> tuple[ErrorCode, str]:
    assert isinstance(step.response, Refused)
    assert step.records == ()
    return step.response.code, step.response.message


def test_a_view_is_stored_with_one_text_of_its_schema_and_the_usual_columns() -> None:
    step = decide_create_view(state_after(), COMMAND)
    view = JsonView("delays", "flights", "carrier STRING, delay INT", USUAL)
    assert step.response == view
    assert step.records == (ViewCreated("delays", "flights", view.schema, ",".join(USUAL)),)
    assert state_after(*step.records).views == {"delays": view}


def test_what_was_stored_is_read_back_after_a_restart() -> None:
    step = decide_create_view(state_after(), replace(COMMAND, columns=()))
    rows = [encode_record(record) for record in [*RECORDS, *step.records]]
    assert replay_cluster(rows).views == {"delays": step.response}


def test_without_columns_those_that_a_field_is_named_as_are_left_out() -> None:
    step = decide_create_view(state_after(), replace(COMMAND, schema="Key STRING, timestamp BIGINT"))
    assert isinstance(step.response, JsonView)
    assert step.response.columns == ("partition", "offset", "_corrupt")


def test_validation_alone_answers_as_if_and_changes_nothing() -> None:
    step = decide_create_view(state_after(), replace(COMMAND, validate_only=True))
    assert isinstance(step.response, JsonView)
    assert step.records == ()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (replace(COMMAND, name="my-view"), ErrorCode.INVALID_REQUEST, "a letter first, found 'my-view'"),
        (replace(COMMAND, name="Lag"), ErrorCode.INVALID_REQUEST, "that the bus does not have itself, found Lag"),
        (
            replace(COMMAND, name="orders"),
            ErrorCode.INVALID_REQUEST,
            "found 'orders' and a topic Orders",
        ),
        (replace(COMMAND, schema="delay WHAT"), ErrorCode.INVALID_REQUEST, "view 'delays': .*found 'WHAT'"),
        (replace(COMMAND, columns=("nonsense",)), ErrorCode.INVALID_REQUEST, "expected columns of .*found 'nonsense'"),
        (replace(COMMAND, columns=("key", "key")), ErrorCode.INVALID_REQUEST, "found key twice"),
        (
            replace(COMMAND, schema="Offset INT", columns=("offset",)),
            ErrorCode.INVALID_REQUEST,
            "found offset as both",
        ),
        (replace(COMMAND, topic="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "found none named 'nowhere'"),
        (replace(COMMAND, topic="__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION, "belong to the bus"),
    ],
)
def test_what_cannot_be_is_refused(command: CreateView, code: ErrorCode, message: str) -> None:
    found = refusal(decide_create_view(state_after(), command))
    assert found[0] is code
    assert re.search(message, found[1]), found[1]


def test_a_name_in_another_case_is_taken_until_it_is_replaced() -> None:
    state = state_after(ViewCreated("Delays", "flights", "a INT", "key"))
    code, message = refusal(decide_create_view(state, COMMAND))
    assert (code, message) == (ErrorCode.INVALID_REQUEST, "view Delays exists already; it can be replaced")
    step = decide_create_view(state, replace(COMMAND, replaces=True))
    for record in step.records:
        state = apply(state, record)
    assert state.views == {"delays": step.response}


def test_a_view_is_deleted_by_its_name_in_any_case() -> None:
    state = state_after(ViewCreated("Delays", "flights", "a INT", "key"))
    step = decide_delete_view(state, "dELAYS")
    assert step.records == (ViewDeleted("Delays"),)
    assert apply(state, step.records[0]).views == {}


def test_deleting_what_is_not_there_names_no_others() -> None:
    state = state_after(ViewCreated("Delays", "flights", "a INT", "key"))
    assert refusal(decide_delete_view(state, "delay")) == (
        ErrorCode.INVALID_REQUEST,
        "expected a view, found none named 'delay'",
    )


def test_a_view_outlives_its_topic() -> None:
    state = state_after(ViewCreated("delays", "flights", "a INT", "key"), TopicDeleted("flights", "id-1"))
    assert list(state.views) == ["delays"]


def test_views_are_bounded_but_one_can_still_be_replaced() -> None:
    view = JsonView("v", "flights", "a INT", ())
    state = replace(state_after(), views={f"v{number}": view for number in range(VIEWS_MAX)})
    assert refusal(decide_create_view(state, COMMAND))[0] is ErrorCode.POLICY_VIOLATION
    assert decide_create_view(state, replace(COMMAND, name="v0", replaces=True)).records
