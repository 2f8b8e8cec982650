from __future__ import annotations

from bus.broker_api.calls import CALLS
from bus.broker_api.calls import ITEMS_MAX as BROKER_ITEMS_MAX
from bus.client.admin.broker_calls import KEYS_MAX
from bus.client.admin.groups import MEMBERS_MAX
from bus.client.connection.retrying import CHANGES_MAX, ITEMS_MAX, portions
from bus.consumer_groups import bounds
from bus.grpc_api.server import request_limits


def test_portions_keep_the_order_and_count_what_items_count() -> None:
    assert list(portions("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(portions([1, 2, 9, 1, 1], 3, lambda item: item)) == [[1, 2], [9], [1, 1]]
    assert list(portions([])) == [[]]


def test_bounds_of_clients_are_below_those_of_brokers() -> None:
    assert ITEMS_MAX <= bounds.PARTITIONS_MAX
    assert 1 + 2 * ITEMS_MAX <= BROKER_ITEMS_MAX  # each partition may have a topic of its own
    assert ITEMS_MAX * 400 < request_limits.CONTROL_BYTES_MAX  # a topic of 249 bytes, its id, and a few numbers
    changes = ("CreateTopics", "DeleteTopics", "CreatePartitions")
    assert all(CALLS[name].items_max >= CHANGES_MAX for name in changes)
    assert min(bounds.GROUPS_MAX, CALLS["DeleteGroups"].items_max) >= KEYS_MAX
    assert bounds.LEAVING_MEMBERS_MAX >= MEMBERS_MAX
