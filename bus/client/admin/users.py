"""The administrator's calls about users that log in by a password, about ACLs and about quotas."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bus.addresses import format_address
from bus.client.admin.broker_calls import raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.retrying import CHANGES_MAX, portions
from bus.client.values import (
    ANY_NAME,
    DEFAULT_NAME,
    QuotaEntity,
    QuotaUsage,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.acl_messages import decode_acl, encode_acl, encode_acl_filter
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.security.acls import AclBinding, AclBindingFilter
from bus.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, salt_password

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


_FILTERS_MAX = 100  # of one request


class AclAdmin:
    """`on_controller` and `ask` call a broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], ask: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._ask = ask

    def create(self, acls: Sequence[AclBinding]) -> None:
        results: list[tuple[str, int, str]] = []
        for portion in portions(acls, CHANGES_MAX):
            request = pb.CreateAclsRequest(acls=map(encode_acl, portion))
            answers = _checked(self._on_controller("CreateAcls", request)).results
            results += [
                (str(acl), one.error_code, one.error_message) for acl, one in zip(portion, answers, strict=True)
            ]
        raise_failures(results)

    def describe(self, wanted: AclBindingFilter) -> list[AclBinding]:
        request = pb.DescribeAclsRequest(filter=encode_acl_filter(wanted))
        return list(map(decode_acl, _checked(self._ask("DescribeAcls", request)).acls))

    def delete(self, filters: Sequence[AclBindingFilter]) -> dict[AclBindingFilter, list[AclBinding]]:
        gone: dict[AclBindingFilter, list[AclBinding]] = {}
        for portion in portions(filters, _FILTERS_MAX):
            request = pb.DeleteAclsRequest(filters=map(encode_acl_filter, portion))
            answers = _checked(self._on_controller("DeleteAcls", request)).results
            gone.update({one: list(map(decode_acl, found.acls)) for one, found in zip(portion, answers, strict=True)})
        return gone


def _checked(response: Any) -> Any:
    if response.error_code:
        raise error_of(response.error_code, response.error_message)
    return response


class QuotaAdmin:
    """`on_controller` and `retrying` call the broker, once or until it answers; both raise `BusError`."""

    def __init__(
        self, cluster: Cluster, on_controller: Callable[[str, Any], Any], retrying: Callable[[str, Any], Any]
    ) -> None:
        self._cluster = cluster
        self._on_controller = on_controller
        self._retrying = retrying

    def describe(self, wanted: QuotaEntity, *, is_strict: bool) -> dict[QuotaEntity, dict[str, float]]:
        parts = [pb.QuotaFilterPart(part=part, any_name=part.name == ANY_NAME) for part in _encode(wanted)]
        response = self._retrying("DescribeClientQuotas", pb.DescribeClientQuotasRequest(parts=parts, strict=is_strict))
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return {_decode(one.entity): dict(one.quotas) for one in response.entries}

    def alter(self, alterations: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool) -> None:
        asked = [
            pb.QuotaAlteration(entity=_encode(entity), changes=[_change(*one) for one in changes.items()])
            for entity, changes in alterations.items()
        ]
        failures = []
        for portion in portions(asked, CHANGES_MAX, lambda one: 2 + len(one.changes)):
            request = pb.AlterClientQuotasRequest(entries=portion, validate_only=validate_only)
            for one in self._on_controller("AlterClientQuotas", request).entries:
                failures.append((show_entity(_decode(one.entity)), one.error_code, one.error_message))
        raise_failures(failures)

    def usage_on(self, broker: pb.Broker, deadline_ms: float) -> Iterable[QuotaUsage]:
        request, address = pb.DescribeQuotaUsageRequest(), format_address(broker.host, broker.port)
        response = self._cluster.call("DescribeQuotaUsage", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return [
            QuotaUsage(broker.broker_id, _decode(one.entity), one.quota, one.limit, one.rate, one.throttle_time_ms)
            for one in response.entries
        ]


def show_entity(entity: QuotaEntity) -> str:
    """As Kafka's command prints it."""
    parts = (("user-principal", entity.user), ("client-id", entity.client_id))
    return ", ".join(
        f"the default {what}" if name == DEFAULT_NAME else f"{what} '{name}'"
        for what, name in parts
        if name is not None
    )


def _encode(entity: QuotaEntity) -> list[pb.QuotaEntityPart]:
    parts = (("user", entity.user), ("client-id", entity.client_id))
    return [
        pb.QuotaEntityPart(type=kind, name=None if name == DEFAULT_NAME else name)
        for kind, name in parts
        if name is not None
    ]


def _decode(parts: Iterable[pb.QuotaEntityPart]) -> QuotaEntity:
    names = {part.type: part.name if part.HasField("name") else DEFAULT_NAME for part in parts}
    return QuotaEntity(names.get("user"), names.get("client-id"))


def _change(name: str, limit: float | None) -> pb.QuotaChange:
    return pb.QuotaChange(name=name, remove=True) if limit is None else pb.QuotaChange(name=name, value=limit)
