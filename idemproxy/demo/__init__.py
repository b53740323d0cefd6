"""What `idemproxy demo` shows: a small API, the proxy before it, and a tour of what the two do together."""
