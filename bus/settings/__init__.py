"""Settings: what a key is, the keys of brokers and topics, and the files that settings are read from."""
