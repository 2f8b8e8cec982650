"""Produce and fetch over gRPC: batches in and out."""
