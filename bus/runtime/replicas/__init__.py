"""Replicas: reports of leaders to the brokers that follow their partitions, and the tables that followers keep warm."""
