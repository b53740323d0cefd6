"""`python -m idemproxy`, and the `idemproxy` command."""

from __future__ import annotations

import sys


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "healthcheck":
        # Probes run every few seconds: this verb starts without loading the rest of the product.
        from idemproxy.healthcheck import run

        sys.exit(run(sys.argv[2:]))
    from idemproxy.cli import cli

    cli()


if __name__ == "__main__":
    main()
