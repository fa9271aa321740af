"""The addresses behind a name: one for each replica, where a cluster publishes them so."""

import asyncio
import ipaddress
import socket


def is_address(host: str) -> bool:
    """Whether `host` is an address already, or this machine's own name for itself."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str) -> list[str]:
    """All addresses of `host`, of one family: IPv4 where it has any, else IPv6; none where it is not known.

    One family, because a machine with an address of each would otherwise pass for two.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    for family in (socket.AF_INET, socket.AF_INET6):
        addresses = sorted({str(address[0]) for kind, _, _, _, address in found if kind == family})
        if addresses:
            return addresses
    return []
