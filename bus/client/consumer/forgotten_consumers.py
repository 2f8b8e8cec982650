"""What becomes of a consumer that the program lets go of without closing it.

Guards one promise: its partitions do not wait for max.poll.interval.ms. What is garbage leaves its group at once, in
the background, without a commit and without callbacks: what the program had in hand comes again, to another member.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from typing import Any

from bus.client.connection.cluster import Cluster
from bus.client.consumer.fetcher import Fetcher
from bus.client.consumer.group_client import GroupClient

logger = logging.getLogger(__name__)

_LEAVE_TIMEOUT_MS = 10_000


def watch(
    consumer: Any, group: GroupClient | None, fetcher: Fetcher, cluster: Cluster
) -> weakref.finalize[[GroupClient | None, Fetcher, Cluster], Any]:
    """From now on `consumer` may be forgotten; nothing else may refer to it. Detach it when it is closed."""
    finalizer = weakref.finalize(consumer, _end_in_background, group, fetcher, cluster)
    finalizer.atexit = False  # the process ends, and with it the connections
    return finalizer


def _end_in_background(group: GroupClient | None, fetcher: Fetcher, cluster: Cluster) -> None:
    is_member = group is not None and group.subscription is not None
    if not is_member and not fetcher.is_connected:
        cluster.close()
        return
    threading.Thread(target=_end, args=(group, fetcher, cluster), name="bus-consumer-end", daemon=True).start()
    of_group = f" of group {group.group_id!r}" if group is not None else ""
    message = f"a consumer{of_group} was never closed: close() it, or use it in a with block; nothing is committed"
    logger.warning(message)
    warnings.warn(message, ResourceWarning, stacklevel=2)


def _end(group: GroupClient | None, fetcher: Fetcher, cluster: Cluster) -> None:
    try:
        if group is not None:
            group.abandon("the consumer was forgotten, and not closed", _LEAVE_TIMEOUT_MS)
    finally:
        fetcher.close()
        cluster.close()
