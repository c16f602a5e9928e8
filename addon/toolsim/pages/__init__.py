"""Renders requests and answers as text for people to read, without changing the flows."""
