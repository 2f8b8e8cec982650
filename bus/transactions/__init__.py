"""The rules of transactions: what the coordinator of a transactional id decides, and nothing that does I/O."""
