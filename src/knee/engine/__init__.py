"""One vLLM engine in virtual time: scheduler, KV blocks, prefix cache, step cost, and their metrics."""
