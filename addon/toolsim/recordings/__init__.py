"""Recorded exchanges, which can be written without secrets, compared, replayed, and served."""
