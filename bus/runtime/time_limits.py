"""Waiting for a limited time.

`asyncio.wait_for` of Python 3.10 and 3.11 forgets a cancellation that comes in the moment in which what it waits for is
done: a task that is cancelled once then goes on for good, and a stop that joins it hangs. It is used nowhere here.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["time_limit"]
