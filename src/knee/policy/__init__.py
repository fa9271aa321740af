"""Admission and routing decisions, without sockets or clocks: shared by gateway and simulated fleet."""
