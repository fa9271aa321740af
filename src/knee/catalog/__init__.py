"""Facts about vLLM by version: flags and their defaults, metrics, log lines, changes; accelerators.

The facts are data files in `data/`; docs/catalog.md says how to add a release. Nothing is read before the
first lookup.
"""
