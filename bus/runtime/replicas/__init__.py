"""Replicas: what a leader tells the brokers that follow its partitions, and the tables that those keep warm."""
