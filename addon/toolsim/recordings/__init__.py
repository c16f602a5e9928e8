"""Recorded exchanges: writing without secrets, comparison, replay, and serving."""
