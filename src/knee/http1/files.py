"""File descriptors: every open stream is one."""

import contextlib

try:
    import resource
except ImportError:  # not a POSIX system: there is no such limit to raise
    resource = None  # type: ignore[assignment]


def allow_many_files() -> None:
    """Raise this process's limit on open files as far as it may itself (the soft limit to the hard one)."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
