"""How fast the bus is, beside a real Apache Kafka on the same machine: `python -m benchmarks.run`."""
