"""Rules of consumer groups: the place for the group state machine, assignors and offset expiry."""
