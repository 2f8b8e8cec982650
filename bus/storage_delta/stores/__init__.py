"""Stores of files: a local disk, memory, or a rehearsal over another store. Each knows its durability and no Delta."""
