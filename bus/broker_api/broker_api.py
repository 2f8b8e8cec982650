"""All that a broker answers, for the adapters of its protocols."""

from __future__ import annotations

from collections.abc import Mapping

from bus.broker_api.audit import AccessLog
from bus.broker_api.authorization import AclApi, Authorizer
from bus.broker_api.client_quotas import ClientQuotas, QuotaAdminApi
from bus.broker_api.cluster_admin import ClusterAdminApi, ClusterApi, UserApi
from bus.broker_api.fetch import FetchApi
from bus.broker_api.groups import GroupApi
from bus.broker_api.logins import LoginApi, LoginSettings, TokenLogins, login_event
from bus.broker_api.maintenance import MaintenanceApi
from bus.broker_api.metadata import MetadataApi
from bus.broker_api.produce import ProduceApi
from bus.broker_api.requests import RequestMemory
from bus.broker_api.transactions import ProducerApi, TransactionApi
from bus.ports import Clock
from bus.runtime.audit_log import AuditLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.coordinators.transaction_link import Transactions
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import LoopShares
from bus.runtime.user_directory import UserDirectory
from bus.settings.broker import BrokerConfig
from bus.settings.login_settings import login_lives_ms

# What the streams of one client may take beyond its share of memory: what had been read when the share was used up.
_OVERDRAFT_BYTES = 64 * 1024 * 1024
_CONTROL_OVERDRAFT_BYTES = 16 * 1024 * 1024


class BrokerApi:
    """One API for each kind of call; and what adapters share with it: turns on the event loop (`shares`), threads for
    what takes long (`calls`), and the memory in which the requests of all protocols count until they are answered. Once
    `stopping` has begun, what waits for more is answered with what there is."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCoordinator,
        transactions: Transactions,
        users: UserDirectory,
        audit: AuditLog,
        config: BrokerConfig,
        *,
        tokens: Mapping[str, TokenLogins],
        clock: Clock,
        calls: BlockingCalls,
        stopping: Stopping,
        shares: LoopShares,
    ) -> None:
        self.calls = calls
        self.audit = audit
        self.shares = shares
        self.endpoint = cluster.endpoint
        self.produce_memory = RequestMemory(config.queued_max_request_bytes, _OVERDRAFT_BYTES)
        # Of all other calls: a client whose records wait for a slow disk still gets its heartbeats through.
        self.control_memory = RequestMemory(config.queued_max_request_bytes // 4, _CONTROL_OVERDRAFT_BYTES)
        self.authorizer = Authorizer(lambda: cluster.state, config.acl_policy, shares, AccessLog(audit), audit)
        timeout_ms = config.request_timeout_ms
        answers = RequestMemory(config.queued_max_request_bytes)
        self.quotas = ClientQuotas(cluster, stopping)
        self.quota_admin = QuotaAdminApi(cluster, self.quotas)
        self.cluster_admin = ClusterAdminApi(cluster, shares)
        self.cluster = ClusterApi(cluster, stopping, audit)
        self.metadata = MetadataApi(cluster, self.quotas, audit, shares)
        self.producers = ProducerApi(cluster, shares, request_timeout_ms=timeout_ms)
        self.produce = ProduceApi(cluster, transactions.link, clock, calls, shares, request_timeout_ms=timeout_ms)
        self.transactions = TransactionApi(
            cluster,
            transactions.coordinator,
            transactions.participants,
            transactions.link,
            coordinator,
            shares,
            now_ms=clock.now_ms,
            request_timeout_ms=timeout_ms,
        )
        self.fetch = FetchApi(cluster, stopping, answers, shares, bytes_max=config.fetch_max_bytes)
        self.acls = AclApi(cluster, self.authorizer, shares)
        self.groups = GroupApi(cluster, coordinator, shares)
        self.users = UserApi(users)
        settings = LoginSettings(
            login_lives_ms(config),
            failure_delay_ms=config.connection_failed_authentication_delay_ms,
        )
        self.logins = LoginApi(users, settings, calls, tokens)
        self.logins.reports.append(lambda report: audit.add(login_event(report, audit.now_ms())))
        self.maintenance = MaintenanceApi(
            cluster, stopping, shares, calls, jobs_max=config.log_cleaner_threads, request_timeout_ms=timeout_ms
        )
