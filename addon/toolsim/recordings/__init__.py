"""Recorded exchanges: writes them without secrets, compares them, replays them, and serves them."""
