"""Fedkin: one model per client, from data that never leave them."""

__version__ = "0.1.0"
