"""An S3 server on this machine (moto), and a proxy in front of it that breaks answers on purpose."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyarrow import fs

# Path and headers of a request -> what to do with the answer: "" nothing, "503", "drop" (half the body, then the
# connection ends), "refuse" (no answer at all)
Breaks = Callable[[str, Any], str]


@contextmanager
def s3_server() -> Iterator[str]:
    """``host:port`` of an empty server."""
    from moto.server import ThreadedMotoServer

    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # nothing outside this machine is asked
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
    finally:
        server.stop()


def file_system(endpoint: str, **options: Any) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", access_key="x", secret_key="x", region="us-east-1", **options
    )


@contextmanager
def breaking_proxy(endpoint: str, breaks: Breaks) -> Iterator[str]:
    """``host:port`` of a server that passes GET and HEAD on to `endpoint`, and answers as `breaks` says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            what = breaks(self.path, self.headers) if self.command == "GET" else ""
            if what == "refuse":
                self.close_connection = True
                return
            if what == "503":
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            upstream = http.client.HTTPConnection(endpoint, timeout=30)
            upstream.request(self.command, self.path, headers=dict(self.headers.items()))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if what == "drop" else body)
            self.close_connection = what == "drop"
            upstream.close()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
