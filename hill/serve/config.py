"""The settings of the server, and who may reach it."""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hill.errors import ConfigError
from hill.settings import within

KEY = "HILL_API_KEY"

_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "batch": (1, 10**6),
    "wait_ms": (0, 600_000),
    "queue": (1, 10**9),
    "timeout": (0.1, 86_400),
    "max_texts": (1, 10**9),
    "max_body": (1, 10**12),
    "idle_timeout": (0.1, 86_400),
    "max_connections": (1, 10**6),
}


@dataclass(frozen=True)
class ServeConfig:
    """The address and the limits of the server."""

    host: str = "127.0.0.1"
    """Address to listen on. If other machines can reach it, it needs an API key, or --public."""
    port: int = 8000
    """Port to listen on; 0 for any free port."""
    public: bool = False
    """Accept requests from other machines without an API key."""
    allow_host: tuple[str, ...] = ()
    """Accept this name in the Host header; may be repeated, '*' accepts every name."""
    batch: int = 64
    """Maximum number of texts per batch."""
    wait_ms: float = 2.0
    """Milliseconds that an idle server waits for more texts before it predicts a batch."""
    queue: int = 512
    """Maximum number of waiting texts; further requests get status 503."""
    timeout: float = 30.0
    """Seconds to receive a body, and to predict it; slower requests get status 408 or 504."""
    max_texts: int = 256
    """Maximum number of texts per request; larger requests get status 422."""
    max_body: int = 4_000_000
    """Maximum number of bytes per request; larger requests get status 413."""
    idle_timeout: float = 10.0
    """Seconds that a connection may take to send the headers of its next request before it is closed."""
    max_connections: int = 200
    """Maximum number of open connections per client address (429); three times as many in total (503)."""

    def __post_init__(self) -> None:
        for name, (minimum, maximum) in _RANGES.items():
            within(getattr(self, name), minimum, maximum, f"serve.{name}")
        if self.queue < self.max_texts:
            sizes = f"serve.queue is {self.queue} and serve.max_texts is {self.max_texts}"
            raise ConfigError(f"{sizes}; expected a queue that holds the largest request")
        for name in self.allow_host:
            if name != "*" and not re.fullmatch(r"[\w.:\[\]-]+", name):
                raise ConfigError(f"serve.allow_host is '{name}'; expected a host name such as hill.example, or '*'")


def read_key(environment: Mapping[str, str] = os.environ) -> str:
    """The API key from the environment; empty if there is none."""
    return environment.get(KEY, "").strip()


def check_address(config: ServeConfig, key: str, review: bool = False) -> None:
    """Raise if other machines could reach the server without a key, unless `public` allows it.

    A review always needs a key, because its reviewers read the texts of the queue and write answers.
    """
    if review and not key and not _is_loopback(config.host):
        raise ConfigError(
            f"other machines can reach '{config.host}', and --review needs an API key then, also with --public; set "
            f"{KEY}"
        )
    if not key and not config.public and not _is_loopback(config.host):
        raise ConfigError(
            f"other machines can reach '{config.host}', and there is no API key; set {KEY}, or give --public to accept "
            "requests without a key"
        )


class AllowedHosts:
    """The hosts that a request may name in its Host header.

    With DNS rebinding, a web page makes its own name resolve to the address of this server, and the browser then lets
    the page read the responses. Such a request has the page's name as its Host. With an API key every host is accepted,
    because the page does not know the key, unless `allow_host` restricts the hosts.
    """

    def __init__(self, config: ServeConfig, key: str) -> None:
        self._accept_all = "*" in config.allow_host or bool(key and not config.allow_host)
        self._names = {_normalize_host(name) for name in ("localhost", config.host, *config.allow_host)} - {""}
        self._only_local = _is_loopback(config.host)

    def accepts(self, header: str) -> bool:
        """Whether requests with this Host header are accepted; it is empty if there is none."""
        host = _normalize_host(header)
        if self._accept_all or host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not self._only_local  # rebinding needs a name, so other addresses are safe


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; an empty host means all addresses."""
    try:
        addresses = socket.getaddrinfo(host or "::", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"--host is '{host}', which is not an address of this machine; try 127.0.0.1") from None
    return all(ipaddress.ip_address(str(address[4][0]).split("%")[0]).is_loopback for address in addresses)


def _normalize_host(text: str) -> str:
    """A host in lower case, without port, brackets and trailing dot."""
    match = re.fullmatch(r"(?:\[(.+)\]|([^:]*))(?::[0-9]*)?", text)
    host = (match[1] or match[2] if match else text).removesuffix(".").lower()
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
