"""What a record of the cluster metadata means for the broker's log: a line for people, or nothing.

Guards one promise: each change that a client asks for by name (topics, partitions, configs, views, quotas, ACLs) has
one line, and so has each change of the controller, of the brokers that may lead and of the level. What a broker does by
itself with every batch or producer has none.
"""

from __future__ import annotations

from bus.client_quotas.entities import decode_entity
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerUnfenced,
    ClientQuotaChanged,
    ClusterRecord,
    ControllerElected,
    FeatureLevel,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    ViewCreated,
    ViewDeleted,
    parse_acl,
)


def describe_change(record: ClusterRecord) -> str | None:
    """None: nothing that a person would look for."""
    match record:
        case TopicCreated(topic, topic_id, partitions):
            return f"topic {topic} was created: {_counted(partitions, 'partition')}, id {topic_id}"
        case PartitionsAdded(topic, _, partitions):
            return f"topic {topic} has {_counted(partitions, 'partition')} now"
        case TopicConfigChanged(topic, _, name, None):
            return f"topic {topic}: {name} has its default again"
        case TopicConfigChanged(topic, _, name, value):
            return f"topic {topic}: {name}={value}"
        case TopicDeleted(topic, topic_id):
            return f"topic {topic} was deleted, id {topic_id}"
        case ViewCreated(view_name, topic):
            return f"view {view_name} of topic {topic} was created"
        case ViewDeleted(view_name):
            return f"view {view_name} was deleted"
        case ClientQuotaChanged(entity, quotas):
            return f"quotas of {_shown(entity)}: {'none any more' if quotas is None else quotas}"
        case AclAdded(acl):
            return f"ACL was added: {parse_acl(acl)}"
        case AclRemoved(acl):
            return f"ACL was removed: {parse_acl(acl)}"
        case BrokerFenced(broker_id, broker_epoch):
            return f"broker {broker_id} is fenced, at broker epoch {broker_epoch}"
        case BrokerUnfenced(broker_id, broker_epoch):
            return f"broker {broker_id} is unfenced, at broker epoch {broker_epoch}"
        case ControllerElected(broker_id):
            return f"broker {broker_id} is the controller"
        case FeatureLevel(feature, level):
            return f"{feature} is {level}"
        case _:
            return None


def _shown(entity: str) -> str:
    try:
        return str(decode_entity(entity))
    except ValueError:
        return entity


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
