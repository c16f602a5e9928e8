"""The way of a response: backend bytes to client bytes."""
