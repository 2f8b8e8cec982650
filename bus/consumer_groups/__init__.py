"""Rules of consumer groups: membership, generations, committed offsets and their expiry. `decisions` is the door."""
