"""Rules of the cluster metadata: topics, their names and configs, brokers, leaders, producer ids, views."""
