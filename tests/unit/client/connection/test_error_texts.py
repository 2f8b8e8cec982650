"""Errors of a broker, whose text somebody may have chosen: a topic's name, a reason, a client id."""

from __future__ import annotations

import ast
from pathlib import Path

import grpc
import pytest

import bus
from bus.client.connection.connections import translate_rpc_error
from bus.client.connection.logins import _next
from bus.client.connection.metadata_cache import error_of
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

CHOSEN = "topic 'a\x1b[2Jb\nERROR forged \u202e\x9bc' does not exist"
WITHOUT_DETAILS = {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
SHOWN = r"topic 'a\x1b[2Jb\nERROR forged \u202e\x9bc' does not exist"


class Failure(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, status: grpc.StatusCode) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return CHOSEN


@pytest.mark.parametrize("code", [3, 87, 30_000])
def test_text_of_an_answer_is_escaped_in_its_error(code: int) -> None:
    error = error_of(code, CHOSEN)
    assert SHOWN in str(error)
    assert error.message.endswith(SHOWN)


@pytest.mark.parametrize("status", [one for one in grpc.StatusCode if one not in WITHOUT_DETAILS])
def test_text_of_a_status_is_escaped_in_its_error(status: grpc.StatusCode) -> None:
    assert SHOWN in str(translate_rpc_error(Failure(status), address="a:1", what="Produce"))


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.SASL_AUTHENTICATION_FAILED])
def test_text_of_a_refused_login_is_escaped_in_its_error(code: ErrorCode) -> None:
    refused = pb.SaslAuthenticateResponse(error_code=code, error_message=CHOSEN)
    with pytest.raises(BusError) as caught:
        _next(iter([refused]), "a:1")
    assert str(caught.value) == f"{code.name}: the broker at a:1: {SHOWN}"


def test_no_error_of_a_client_is_made_of_an_answer_by_hand() -> None:
    """`error_of` is the door for the text of an answer, `translate_rpc_error` that for the details of a status."""
    folder = Path(bus.__file__).parent
    by_hand = []
    for path in sorted([*folder.glob("client/**/*.py"), *folder.glob("spark/**/*.py"), *folder.glob("aio/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BusError":
                used = {name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute)}
                if used & {"error_message", "details"}:
                    by_hand.append(f"{path.relative_to(folder)}:{node.lineno}")
    assert by_hand == []
