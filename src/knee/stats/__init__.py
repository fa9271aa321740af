"""Percentiles with censoring, intervals under autocorrelation, steady state, growth, comparison."""
