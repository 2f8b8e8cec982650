"""Settings of the clients: Kafka's names, defaults, and what each value may be."""
