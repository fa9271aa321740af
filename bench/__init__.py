"""Benchmarks: each module here prints the figures it measures, one JSON line each."""
