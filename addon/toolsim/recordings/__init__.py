"""Recorded exchanges: written without secrets, compared, replayed, served again."""
