"""Requests and answers as text for people to read. Decides nothing, changes nothing."""
