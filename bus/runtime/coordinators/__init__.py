"""Coordinators: entities whose state is a partition of an internal topic, replayed."""
