"""The administrator: topics, configs, logs, views, consumer groups and transactions.

Its calls decide nothing, so it makes and reads the messages of the service itself.
"""
