"""idemproxy: an idempotency reverse proxy that stands before any HTTP API."""

__version__ = "0.1.0"
