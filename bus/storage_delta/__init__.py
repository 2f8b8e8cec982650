"""Partitions as Delta tables: the commit path, opening after a crash, reading, checkpoints, and the root of it all."""
