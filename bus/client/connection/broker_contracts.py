"""The contract of each broker that a client talks to, which is asked for once, before the first call there.

Guards one promise: a call, or a field of a request, that a broker lacks is refused here by name (UNSUPPORTED_VERSION),
before anything is sent. Brokers of this client's own contract, the usual case, cost nothing but the one question. A
broker may be replaced by one of another release, so what was learned is forgotten when a call or a stream there fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from bus.errors import BusError, ErrorCode
from bus.grpc_api.contract import CONTRACT_DIGEST, CONTRACT_VERSION, KnownFields, software_version
from bus.grpc_api.v1 import bus_pb2 as pb


@dataclass(frozen=True, slots=True)
class BrokerFeature:
    """level_min <= level <= level_max: what the broker can work at, and what the cluster works at."""

    name: str
    level: int
    level_min: int
    level_max: int


@dataclass(frozen=True, slots=True)
class BrokerContract:
    """`fields`: None where the broker's contract is this client's own, or is not known. `version` 0: the broker does
    not answer the question, and nothing is known of it."""

    version: int = 0
    software_version: str = ""
    calls: frozenset[str] | None = None
    features: tuple[BrokerFeature, ...] = ()
    fields: KnownFields | None = None

    def check_call(self, method: str, address: str) -> None:
        """Raises `BusError` UNSUPPORTED_VERSION."""
        if self.calls is not None and method not in self.calls:
            raise self._unsupported(f"the call {method}", address)

    def check(self, method: str, request: Message, address: str) -> None:
        """Raises `BusError` UNSUPPORTED_VERSION for a call or a field that the broker lacks."""
        self.check_call(method, address)
        if self.fields is not None:
            unknown = self.fields.find_unknown(request)
            if unknown is not None:
                raise self._unsupported(f"the field {unknown}", address)

    def checked(
        self, requests: Iterable[bytes], request_class: Any, address: str, refuse: Callable[[BusError], None]
    ) -> Iterable[bytes]:
        """The requests of a stream. The first one with a field that the broker lacks ends them, and `refuse` gets the
        error."""
        return requests if self.fields is None else self._checked(requests, request_class, address, refuse)

    def _checked(
        self, requests: Iterable[bytes], request_class: Any, address: str, refuse: Callable[[BusError], None]
    ) -> Iterator[bytes]:
        assert self.fields is not None
        for request in requests:
            unknown = self.fields.find_unknown(request_class.FromString(request))
            if unknown is not None:
                refuse(self._unsupported(f"the field {unknown}", address))
                return
            yield request

    def _unsupported(self, what: str, address: str) -> BusError:
        return BusError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"expected a broker that knows {what}, found one that does not at {address}: its contract is "
            f"{self.version} (delta-bus {self.software_version}), this client's {CONTRACT_VERSION}; upgrade the broker",
        )


UNKNOWN_CONTRACT = BrokerContract()


def new_question() -> pb.ApiVersionsRequest:
    return pb.ApiVersionsRequest(
        client_software_name="delta-bus-python",
        client_software_version=software_version(),
        contract_digest=CONTRACT_DIGEST,
    )


def decode_contract(answer: pb.ApiVersionsResponse, address: str) -> BrokerContract:
    """Return what an answer without an error says. Raises `BusError` for one that makes no sense."""
    try:
        fields = KnownFields(answer.contract) if answer.contract else None
    except ValueError as error:
        raise BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the contract of the broker at {address}: {error}") from None
    return BrokerContract(
        answer.contract_version,
        answer.broker_software_version,
        frozenset(answer.calls),
        tuple(BrokerFeature(one.name, one.level, one.min_level, one.max_level) for one in answer.features),
        fields,
    )
