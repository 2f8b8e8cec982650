"""Membership in a consumer group: machines without threads or clock, and the link that works them."""
