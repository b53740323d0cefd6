"""What idemproxy is measured against: small servers that do their job as it is usually done, and no worse."""
