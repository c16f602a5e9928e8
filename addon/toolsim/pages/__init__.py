"""Renders requests and answers as text for people, without changing any flow."""
