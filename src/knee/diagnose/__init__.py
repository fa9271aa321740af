"""Which limit binds, on what evidence, and the one flag that moves it; or which measurement would decide."""
