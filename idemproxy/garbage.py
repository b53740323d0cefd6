"""Garbage collection for a server: rare, and never over what stays for good."""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 20, 100)
"""Nearly everything here dies by reference count: cycles are left by exceptions, not by requests. Python's own 700
looks for them many times a second under load, and the longer the more answers the cache holds; this is a few megabytes
of garbage at the most."""


def settle_in() -> None:
    """Call once, when all that lives as long as the process is there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
