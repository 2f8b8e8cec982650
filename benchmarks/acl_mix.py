"""Access control lists as a cluster of many teams has them, and a broker that goes by them.

Guards one promise: the caller that is measured is an ordinary user. It is allowed what it does by bindings among those
of all others, and refused what none allows, which is checked before anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from bus import AclBinding, AclOperation, AclPermission, AclResourceType, Admin, NewTopic, PatternType
from bus.errors import BusError, ErrorCode

CALLER = "User:ANONYMOUS"  # both sides are a listener without authentication, so that only the authorizer differs
_TEAMS = 97
_FORBIDDEN = "forbidden"  # a topic
_PORTION = 2_000  # bindings of one request
_Op, _Type, _Pattern, _Permission = AclOperation, AclResourceType, PatternType, AclPermission


def acls_of_many(count: int, caller: str, topics: str) -> Sequence[AclBinding]:
    """So many, ten for each user; the caller's, for topics that begin so, are in their midst."""
    own = [
        *(_binding(_Type.TOPIC, topics, operation, caller, is_prefix=True) for operation in (_Op.WRITE, _Op.READ)),
        _binding(_Type.TOPIC, topics, _Op.CREATE, caller, is_prefix=True),
        _binding(_Type.TOPIC, "shared.", _Op.READ, caller, is_prefix=True),
        _binding(_Type.TOPIC, "audit", _Op.WRITE, caller),
        _binding(_Type.GROUP, "readers-", _Op.READ, caller, is_prefix=True),
        _binding(_Type.TOPIC, topics, _Op.DELETE, caller, is_prefix=True, permission=_Permission.DENY),
    ]
    before = (count - len(own)) // 2
    others = _acls_of_others()
    return [*islice(others, before), *own, *islice(others, count - len(own) - before)]


def _acls_of_others() -> Iterator[AclBinding]:
    number = 0
    while True:
        number += 1
        user, team = f"User:service-{number}", f"team-{number % _TEAMS}"
        yield _binding(_Type.TOPIC, f"{team}.orders-{number}", _Op.WRITE, user)
        yield _binding(_Type.TOPIC, f"{team}.orders-{number}", _Op.READ, user)
        yield _binding(_Type.TOPIC, f"{team}.payments-{number}", _Op.READ, user)
        yield _binding(_Type.TOPIC, f"{team}.", _Op.READ, user, is_prefix=True)
        yield _binding(_Type.TOPIC, f"{team}.{number}.", _Op.WRITE, user, is_prefix=True)
        yield _binding(_Type.TOPIC, f"{team}.{number}.", _Op.CREATE, user, is_prefix=True)
        yield _binding(_Type.TOPIC, f"{team}.secret", _Op.READ, user, permission=_Permission.DENY)
        yield _binding(_Type.GROUP, f"service-{number}", _Op.READ, user)
        yield _binding(_Type.GROUP, f"{team}-", _Op.READ, user, is_prefix=True)
        yield _binding(_Type.TRANSACTIONAL_ID, f"service-{number}-", _Op.WRITE, user, is_prefix=True)


def _binding(
    resource_type: AclResourceType,
    name: str,
    operation: AclOperation,
    principal: str,
    *,
    is_prefix: bool = False,
    permission: AclPermission = AclPermission.ALLOW,
) -> AclBinding:
    pattern = _Pattern.PREFIXED if is_prefix else _Pattern.LITERAL
    return AclBinding(resource_type, name, pattern, principal, "*", operation, permission)


@contextmanager
def authorizing_broker(bench: Bench, acls: Sequence[AclBinding]) -> Iterator[BrokerProcess]:
    """One that goes by these alone. Raises `RuntimeError` if it refuses nothing."""
    root, authorizer = bench.new_root(), "authorizer.class.name=acl"
    with BrokerProcess(root, authorizer, f"super.users={CALLER}") as broker, Admin(broker.address) as admin:
        for start in range(0, len(acls), _PORTION):
            admin.create_acls(acls[start : start + _PORTION])
    with BrokerProcess(root, authorizer) as broker:
        _check_refuses(broker)
        yield broker


def _check_refuses(broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin:
        try:
            admin.create_topics([NewTopic(_FORBIDDEN, 1)])
        except BusError as error:
            if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return
            raise
    raise RuntimeError(f"expected {CALLER} not to be allowed to create {_FORBIDDEN}, found that it is")
