"""A client's knowledge of the brokers, and its calls to them."""

from bus.client.connection import grpc_lines

__all__ = ["grpc_lines"]
