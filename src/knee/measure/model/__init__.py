"""A simulated engine fitted to the points so far: what it replays, what it says of loads not measured."""
