"""Partitions on their leader: the writer loop, what waits for it, reads, and the maintenance of their logs."""
