"""Records as columns: the schema of the log, batches as Arrow, serializers of single values."""
