"""The response path: from backend bytes to client bytes."""
