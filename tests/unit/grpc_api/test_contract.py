"""The contract, its stubs and the error codes are one thing in three files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from grpc_tools import protoc

from bus.broker_api.calls import CALLS
from bus.errors import ErrorCode
from bus.grpc_api.server.service_door import BUS, CLUSTER
from bus.grpc_api.server.servicers import BusServicer, ClusterServicer, find_handler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.settings.broker import BrokerConfig

ROOT = Path(__file__).parents[3]
STUBS = ("bus_pb2.py", "bus_pb2.pyi", "bus_pb2_grpc.py")


def test_stubs_are_what_the_contract_generates(tmp_path: Path) -> None:
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            str(ROOT / "bus/grpc_api/v1/bus.proto"),
        ]
    )
    assert status == 0
    for stub in STUBS:
        fresh = (tmp_path / "bus/grpc_api/v1" / stub).read_text()
        kept = (ROOT / "bus/grpc_api/v1" / stub).read_text()
        assert fresh == kept, f"{stub} is stale: run make proto (Python {sys.version_info.minor})"


def test_wire_and_code_have_the_same_error_codes() -> None:
    on_the_wire = {name.removeprefix("ERROR_CODE_"): number for name, number in pb.ErrorCode.items()}
    assert on_the_wire == {code.name: int(code) for code in ErrorCode}


def test_reserved_numbers_are_not_in_use() -> None:
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        numbers = [field.number for field in message.fields]
        assert len(numbers) == len(set(numbers))


class Anything:
    """A part for handlers that are never called: every attribute is another such part."""

    def __getattr__(self, name: str) -> Any:
        return self


def test_the_server_answers_every_method() -> None:
    anything: Any = Anything()
    bus = BusServicer(anything, anything, BrokerConfig(), anything)
    for service, servicer in ((BUS, bus), (CLUSTER, ClusterServicer(anything, bus))):
        for method in service.methods:
            assert callable(getattr(servicer, method.name)), method.name
            handlers = bus.handlers if service is BUS else servicer
            assert callable(find_handler(handlers, CALLS[method.name])), f"the row of {method.name} names no handler"
        assert not hasattr(servicer, "NoSuchCall")
