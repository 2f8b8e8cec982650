"""The SDK: Producer, Consumer and Admin. It needs no broker code; `bus` itself exports the names."""
