"""The administrator: topics, configs, logs, views and consumer groups."""
