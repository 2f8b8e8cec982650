"""The public names of the bus. Each is loaded when it is first used: importing one part of the bus loads no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.extras import load_name

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.client.config.typed_settings import AdminSettings, ConsumerSettings, ProducerSettings
    from bus.client.consumer.records import RecordDeserializationError
    from bus.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
    from bus.client.producer.producer import Producer
    from bus.client.values import (
        BatchMetadata,
        ConsumerRecord,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        RecordMetadata,
    )
    from bus.descriptions import ScramCredentialInfo
    from bus.errors import BusError, ErrorCode
    from bus.model import TimestampType, TopicPartition
    from bus.processing import Acknowledgement, Output, RecordFailed, RunningConsumer, RunSummary
    from bus.processing.consumer import Consumer
    from bus.processing.listeners import listener, run_listeners
    from bus.security.acls import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermission,
        AclResourceType,
        PatternMatch,
        PatternType,
    )

    __version__: str

__all__ = [
    "Acknowledgement",
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "Admin",
    "AdminSettings",
    "BatchMetadata",
    "BusError",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerSettings",
    "ErrorCode",
    "GroupMetadata",
    "NewTopic",
    "OffsetAndMetadata",
    "Output",
    "PatternMatch",
    "PatternType",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProducerSettings",
    "RecordDeserializationError",
    "RecordFailed",
    "RecordMetadata",
    "RunSummary",
    "RunningConsumer",
    "ScramCredentialInfo",
    "TimestampType",
    "TopicPartition",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "__version__",
    "listener",
    "run_listeners",
]

_HOMES = {
    "Acknowledgement": "bus.processing",
    "AclBinding": "bus.security.acls",
    "AclBindingFilter": "bus.security.acls",
    "AclOperation": "bus.security.acls",
    "AclPermission": "bus.security.acls",
    "AclResourceType": "bus.security.acls",
    "Admin": "bus.client.admin.admin",
    "AdminSettings": "bus.client.config.typed_settings",
    "BatchMetadata": "bus.client.values",
    "BusError": "bus.errors",
    "Consumer": "bus.processing.consumer",
    "ConsumerInterceptor": "bus.client.interceptors",
    "ConsumerRecord": "bus.client.values",
    "ConsumerSettings": "bus.client.config.typed_settings",
    "ErrorCode": "bus.errors",
    "GroupMetadata": "bus.client.values",
    "NewTopic": "bus.client.values",
    "OffsetAndMetadata": "bus.client.values",
    "Output": "bus.processing",
    "PatternMatch": "bus.security.acls",
    "PatternType": "bus.security.acls",
    "Producer": "bus.client.producer.producer",
    "ProducerInterceptor": "bus.client.interceptors",
    "ProducerRecord": "bus.client.interceptors",
    "ProducerSettings": "bus.client.config.typed_settings",
    "RecordDeserializationError": "bus.client.consumer.records",
    "RecordFailed": "bus.processing",
    "RecordMetadata": "bus.client.values",
    "RunSummary": "bus.processing",
    "RunningConsumer": "bus.processing",
    "ScramCredentialInfo": "bus.descriptions",
    "TimestampType": "bus.model",
    "TopicPartition": "bus.model",
    "UserScramCredentialDeletion": "bus.client.values",
    "UserScramCredentialUpsertion": "bus.client.values",
    "listener": "bus.processing.listeners",
    "run_listeners": "bus.processing.listeners",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("delta-bus")
    return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
