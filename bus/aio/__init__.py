"""The bus for programs of asyncio: the names of `bus`, awaited."""

from bus.aio.consumer import Consumer
from bus.aio.producer import Producer

__all__ = ["Consumer", "Producer"]
