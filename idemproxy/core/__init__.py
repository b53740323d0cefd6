"""The pure rooms: values in, values out. No event loop, no clock, no logging, no network."""
