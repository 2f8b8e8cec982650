"""The administrator: topics, configs, logs, views and consumer groups.

Its calls decide nothing, so it makes and reads the messages of the service itself.
"""
