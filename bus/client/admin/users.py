"""The administrator's calls about users that log in by a password."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import error_of
from bus.client.connection.portions import CHANGES_MAX, portions
from bus.client.values import ScramCredentialInfo, UserScramCredentialDeletion, UserScramCredentialUpsertion
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, salt_password

_SALT_BYTES = 32


class UserAdmin:
    """`on_controller` and `ask` call a broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], ask: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._ask = ask

    def describe(self, names: Sequence[str]) -> dict[str, list[ScramCredentialInfo]]:
        found = []
        for portion in portions(names, CHANGES_MAX) if names else [[]]:
            request = pb.DescribeUserScramCredentialsRequest(users=portion)
            response = self._ask("DescribeUserScramCredentials", request)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            found += response.users
        raise_failures([(one.user, one.error_code, one.error_message) for one in found])
        return {
            one.user: [ScramCredentialInfo(info.mechanism, info.iterations) for info in one.credentials]
            for one in found
        }

    def alter(self, alterations: Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]) -> None:
        results = []
        for portion in portions(alterations, CHANGES_MAX):
            request = pb.AlterUserScramCredentialsRequest()
            for one in portion:
                if isinstance(one, UserScramCredentialDeletion):
                    request.deletions.add(user=one.user, mechanism=one.mechanism)
                else:
                    request.upsertions.append(encode_upsertion(one))
            results += self._on_controller("AlterUserScramCredentials", request).users
        raise_failures([(one.user, one.error_code, one.error_message) for one in results])


def encode_upsertion(one: UserScramCredentialUpsertion) -> pb.ScramUpsertion:
    """Raises `BusError` where the password cannot be salted as is wanted."""
    mechanism, iterations = SCRAM_MECHANISMS.get(one.credential.mechanism), one.credential.iterations
    if mechanism is None:
        known = ", ".join(SCRAM_MECHANISMS)
        message = f"expected a mechanism of {known}, found {one.credential.mechanism!r}"
        raise BusError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        message = f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, found {iterations}"
        raise BusError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not one.password:
        raise BusError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "expected a password, found an empty one")
    salt = secrets.token_bytes(_SALT_BYTES) if one.salt is None else one.salt
    return pb.ScramUpsertion(
        user=one.user,
        mechanism=mechanism.name,
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, one.password, salt, iterations),
    )
