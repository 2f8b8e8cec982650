"""The idea of the bus on real data: `python -m bus.demo`."""
