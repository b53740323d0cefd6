"""The record store: PostgreSQL, given or embedded."""
