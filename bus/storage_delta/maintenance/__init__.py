"""Rewrites and cleanup that keep a table small: rolling, key compaction, swaps of files, old versions, orphans."""
