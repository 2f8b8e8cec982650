"""The gRPC adapter of a broker: messages to values and back; every rule is below."""
