"""Agents' tools, called once: `tools/call` of the Model Context Protocol over the same guarded exchange."""
