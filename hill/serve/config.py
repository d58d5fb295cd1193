"""The settings of the server, and who may reach it."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hill.errors import ConfigError
from hill.settings import at_least

KEY = "HILL_API_KEY"


@dataclass(frozen=True)
class ServeConfig:
    """How the server listens, and what it takes on."""

    host: str = "127.0.0.1"
    """Address to listen on; one that others can reach needs an API key, or --public."""
    port: int = 8000
    """Port to listen on; 0 for any that is free."""
    public: bool = False
    """Let everyone who can reach the address in, without a key."""
    batch: int = 64
    """Most texts that are computed together."""
    wait_ms: float = 2.0
    """Milliseconds that a text waits for others to be computed with, when the server is idle."""
    queue: int = 512
    """Most texts that wait; a request beyond that is told to come again (503)."""
    timeout: float = 30.0
    """Seconds after which a request is given up (504)."""
    max_texts: int = 256
    """Most texts of a request (422)."""
    max_body: int = 4_000_000
    """Most bytes of a request (413)."""

    def __post_init__(self) -> None:
        for name in ("batch", "max_texts", "max_body"):
            at_least(getattr(self, name), 1, f"serve.{name}")
        for name in ("port", "wait_ms", "timeout"):
            at_least(getattr(self, name), 0, f"serve.{name}")
        if self.queue < self.max_texts:
            raise ConfigError(
                f"serve.queue is {self.queue} and serve.max_texts {self.max_texts}; expected a queue that holds the "
                "largest request"
            )


def read_key(environment: Mapping[str, str] = os.environ) -> str:
    """The API key of the environment; empty where there is none."""
    return environment.get(KEY, "").strip()


def check_address(config: ServeConfig, key: str) -> None:
    """Raise if others could reach the server without a key and nobody said that they may."""
    if not key and not config.public and not _is_loopback(config.host):
        raise ConfigError(
            f"'{config.host}' can be reached by others, and there is no API key; set {KEY}, or give --public to let "
            "everyone in"
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; an empty one stands for all."""
    try:
        found = socket.getaddrinfo(host or "::", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"the host is '{host}', which is no address of this machine; try 127.0.0.1") from None
    return all(ipaddress.ip_address(str(address[4][0]).split("%")[0]).is_loopback for address in found)
