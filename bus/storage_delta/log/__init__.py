"""The Delta log of one table: actions, commits, snapshots, checkpoints, and following what is committed."""
