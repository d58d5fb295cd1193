"""Running the server: it listens, says where, and ends when it is told to, with its work done."""

import logging
import signal
import socket

import uvicorn

from hill.errors import ConfigError
from hill.serve.app import make_app
from hill.serve.config import ServeConfig, check_address, read_key
from hill.serve.log import note, start_log
from hill.serve.shelf import Shelf


class Server(uvicorn.Server):
    """A server that says where it listens once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for place in sockets or []:
            host, port = place.getsockname()[:2]
            note(logging.INFO, message="listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")


def serve(shelf: Shelf, config: ServeConfig, place: socket.socket) -> None:
    """Serve these models at a place that `bind` gave, until a signal to end comes; then finish what was accepted."""
    key = read_key()
    start_log()
    server = Server(
        uvicorn.Config(make_app(shelf, config, key), log_config=None, access_log=False, server_header=False)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises it again when all is done; that is a good end
    server.run([place])
    note(logging.INFO, message="ended")


def bind(config: ServeConfig) -> socket.socket:
    """A socket at the address of the settings, on which nothing listens yet; an address that may not be is an error."""
    check_address(config, read_key())
    family = socket.AF_INET6 if ":" in config.host or not config.host else socket.AF_INET
    # asyncio sends small answers at once only where the protocol is named
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        place.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {reason}; choose another --host or --port"
        ) from None
    return place
