"""Limits per connection that uvicorn lacks: time to send headers and to read responses, header size, connections."""

import asyncio
import json
import logging
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hill.serve.config import ServeConfig
from hill.serve.middleware import log_event

TOTAL_FACTOR = 3
"""Maximum number of open connections in total, as a multiple of those per client."""
MAX_HEADERS = 65_536
"""Maximum number of bytes of the headers of a request, or of its trailers."""


class Connection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, and refused if its client has too many connections.

    The middleware limits the time to send a body and to predict. One timer limits the rest. It starts when the
    connection begins to wait for its client, and single bytes do not restart it:

    - The headers of the next request must arrive within `idle_timeout` seconds. So must the rest of a body that was not
      read because the response did not depend on it.
    - The client must read a response that does not fit into the send buffer within `timeout` seconds.
    """

    limits: ClassVar[ServeConfig] = ServeConfig()
    _timer: asyncio.TimerHandle | None = None
    _unparsed = 0
    """Bytes since the parser last reported headers or a chunk of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, unless too many connections are open."""
        super().connection_made(transport)
        max_connections, address = self.limits.max_connections, _client_address(self)
        max_total = TOTAL_FACTOR * max_connections
        if sum(_client_address(other) == address for other in self.connections) > max_connections:
            limit = f"more than {max_connections} connections are open from your address"
            self._refuse(429, f"{limit}; --max-connections allows more")
        elif len(self.connections) > max_total:
            self._refuse(503, f"more than {max_total} connections are open; try again later")
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Parse; complete headers stop the timer, and headers that are too large end the connection."""
        waiting = self._waits_for_request()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADERS:
            self._refuse(431, f"the headers are too large; expected at most {MAX_HEADERS} bytes")
        elif waiting and not self._waits_for_request():
            self._set_timer()

    def on_headers_complete(self) -> None:
        """Start a request."""
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Add a chunk of a body to its request."""
        self._unparsed = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._set_timer()

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._set_timer()

    def resume_writing(self) -> None:
        """Continue to write."""
        super().resume_writing()
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def _waits_for_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _set_timer(self) -> None:
        """Restart the timer for the current state of the connection."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self.flow.write_paused or self._waits_for_request():
            seconds = self.limits.timeout if self.flow.write_paused else self.limits.idle_timeout
            # Not close(), which waits until the client has read everything.
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error response without calling the application, and close the connection."""
        self.connections.discard(self)
        body = json.dumps({"detail": detail}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
        log_event(logging.WARNING, message=f"refused a connection: {detail}", status=status)


def _client_address(connection: Any) -> str | None:
    """The client's address without its port; None if the client has disconnected."""
    return connection.client[0] if connection.client else None
