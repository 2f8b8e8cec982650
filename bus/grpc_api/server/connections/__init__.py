"""Connections: who may make one, what proves a caller, and the connections to other brokers."""
