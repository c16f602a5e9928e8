"""Renders requests and answers as text for people to read. It does not change the flows."""
