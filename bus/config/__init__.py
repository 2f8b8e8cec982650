"""The keys of the configuration: each with its type, its default, what it accepts, and what it is for."""
