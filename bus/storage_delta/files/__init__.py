"""Data files: encoding and reading them, their statistics and checksums, and what their entries say of producers."""
