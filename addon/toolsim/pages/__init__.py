"""Renders requests and answers as text for people. Does not change anything."""
