"""The path of a response: backend bytes to client bytes."""
