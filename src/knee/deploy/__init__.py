"""Kubernetes objects from measured values, and a lint for objects written by others."""
