"""Will it fit: start-up logs, a running server, or a model's configuration against the capacity rule."""
