"""Move one flag, measure again, stop for a stated reason."""
