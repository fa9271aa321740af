"""Operate a vLLM server at the knee of its latency curve."""

__version__ = "0.1.0"
