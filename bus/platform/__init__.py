"""Signals, bounded files, locks that know their thread, the clock and the allocator: a process and its machine."""
