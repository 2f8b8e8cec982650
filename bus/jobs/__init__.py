"""What the programs in `jobs/` share with each other and with nothing else: queries, ranges, records, rewrites."""
