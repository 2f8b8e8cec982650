"""`bus users`, `bus acls` and `bus quotas`."""
