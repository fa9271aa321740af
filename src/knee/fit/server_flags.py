"""A start-up report as the flags that a diagnosis can use."""

from knee.fit.capacity import usable_tokens
from knee.fit.startup import StartupReport


def known_flags(report: StartupReport) -> dict[str, str]:
    """The flags that the log shows, the caps that hold by default among them, and the KV tokens found."""
    known = dict(report.flags)
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        value = getattr(report, name)
        if value is not None:
            known[name] = str(value)
    if report.engines:
        tokens, _ = usable_tokens(report.engines[0], report.version)
        if tokens is not None:
            known["kv_cache_size_tokens"] = str(tokens)
    return known
