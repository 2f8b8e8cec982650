"""Generated from bus.proto by `make proto`; do not edit."""
