"""Offer load, record what every request saw, find the knee."""
