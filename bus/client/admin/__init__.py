"""The administrator: topics, configs, logs, views, consumer groups, transactions and the cluster.

Its calls decide nothing, so each checks its arguments, makes the message, and reads the answer. They are methods of one
class, `Admin`, which stands on one class a subject: topics, then groups, then transactions.
"""
