"""Rules of quotas: whose they are, which one holds for a caller, what was used, and how long a caller has to wait."""
