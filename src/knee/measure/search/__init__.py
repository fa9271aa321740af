"""The search for the knee: which rate next, what the points say, when to stop."""
