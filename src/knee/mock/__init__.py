"""The engine's HTTP face: a simulated vLLM server to talk to."""
