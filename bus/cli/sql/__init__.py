"""`bus sql`."""
