"""Results as people look at them: tables and charts in the terminal."""
