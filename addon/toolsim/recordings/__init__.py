"""Handles recorded exchanges: writes them without secrets, compares, replays and serves them."""
