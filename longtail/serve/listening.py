"""Listening: the sockets of a server, and its address in words."""

import socket
import sys
from ipaddress import ip_address

from longtail.errors import ParameterError

MOST_PORT = 65535


def open_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket for this address, which other sockets of ours may share; or say why not."""
    if not 0 <= port <= MOST_PORT:  # which the system would wrap around
        raise ParameterError(f"--port must be from 0 to {MOST_PORT}. Got {port} instead.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ParameterError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from error
    return listening


def open_sockets(host: str, port: int, n: int) -> list[socket.socket]:
    """Return sockets for one address, among which the system shares connections out.

    Linux does so for sockets that share a port; elsewhere all are the same one.
    """
    first = open_socket(host, port)  # not shared: two servers may not meet on a port
    if sys.platform != "linux":
        return [first, *(first.dup() for _ in range(n - 1))]
    port = first.getsockname()[1]
    first.close()
    return [open_socket(host, port, shared=True) for _ in range(n)]


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server on this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe_address(host: str, port: int) -> str:
    """Return what to type into a browser."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"
