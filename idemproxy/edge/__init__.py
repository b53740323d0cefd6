"""The network side: the upstream client and the server that faces the clients."""
