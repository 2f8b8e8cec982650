"""The producer: batches, partition queues, the sender and what carries its requests."""
