"""The rules of transactions: decisions of the coordinator of a transactional id, without I/O."""
