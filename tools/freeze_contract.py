"""Keeps the contract as it is now, which later releases are compared with: tests/golden/contracts/<version>.binpb.

python tools/freeze_contract.py           after `protoc`; `make proto` does both

A version that was released is not written again: raise CONTRACT_VERSION in bus/grpc_api/contract.py first.
"""

from __future__ import annotations

from pathlib import Path

from bus.grpc_api.contract import CONTRACT_VERSION
from bus.grpc_api.v1 import bus_pb2 as pb

CONTRACTS = Path(__file__).parent.parent / "tests" / "golden" / "contracts"


def main() -> None:
    CONTRACTS.mkdir(parents=True, exist_ok=True)
    (CONTRACTS / f"{CONTRACT_VERSION}.binpb").write_bytes(pb.DESCRIPTOR.serialized_pb)


if __name__ == "__main__":
    main()
