"""What a new version changes: flags, metric names, speed, text."""
