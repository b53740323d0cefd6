"""`idemproxy healthcheck`: exit code 0 when the proxy is ready. Standard library only, for quick probes."""

from __future__ import annotations

import argparse
import http.client
import os
import sys

TIMEOUT_SECONDS = 3


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="idemproxy healthcheck",
        description="Ask the running proxy whether it is ready (exit 0) or not (exit 1), for container health checks.",
    )
    parser.add_argument("--live", action="store_true", help="ask whether it is alive instead of ready")
    parser.add_argument(
        "--admin-listen",
        default=os.environ.get("IDEMPROXY_ADMIN_LISTEN", "127.0.0.1:8081"),
        help="the operator port as HOST:PORT (default: IDEMPROXY_ADMIN_LISTEN or 127.0.0.1:8081)",
    )
    options = parser.parse_args(arguments)
    host, _, port = options.admin_listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104 - to connect, not to bind
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/livez" if options.live else "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode().strip()
        connection.close()
    except (OSError, ValueError, http.client.HTTPException) as failure:
        sys.stderr.write(f"not reachable on {options.admin_listen}: {failure}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0 if answer.status == 200 else 1
