"""The access control lists for administrators: to add, to list and to remove bindings."""

from __future__ import annotations

from collections.abc import Sequence

from bus.authorization.acls import AclBinding, AclBindingFilter
from bus.broker_api.authorization import Authorizer
from bus.errors import ErrorCode, Refused
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares


class AclApi:
    """Each call is refused with SECURITY_DISABLED where no authorizer would act by the lists, as in Kafka."""

    def __init__(self, cluster: Cluster, authorizer: Authorizer, shares: LoopShares) -> None:
        self._cluster = cluster
        self._authorizer = authorizer
        self._shares = shares

    async def create(self, acls: Sequence[AclBinding]) -> list[Refused | None] | Refused:
        """For each binding why it is not there, None once every broker that is not fenced acts by it."""
        return self._check_enabled() or await self._cluster.controller.create_acls(acls)

    async def describe(self, wanted: AclBindingFilter) -> list[AclBinding] | Refused:
        refused = self._check_enabled()
        if refused is not None:
            return refused
        found: list[AclBinding] = []
        share = self._shares.begin()
        for acl in self._authorizer.index:
            if share.is_used_up:
                await share.wait()
            if wanted.matches(acl):
                found.append(acl)
        return found

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding]] | Refused:
        """For each filter the bindings that it found. No broker that is not fenced acts by them any more."""
        return self._check_enabled() or await self._cluster.controller.delete_acls(filters)

    def _check_enabled(self) -> Refused | None:
        if self._authorizer.is_enabled:
            return None
        message = "this broker has no authorizer: set authorizer.class.name=acl, and super.users, and restart it"
        return Refused(ErrorCode.SECURITY_DISABLED, message)
