"""What a client knows of the brokers, and how it calls them."""

from bus.client.connection import grpc_lines

__all__ = ["grpc_lines"]
