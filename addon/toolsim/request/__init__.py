"""Implements the request path: from the client's body to the backend's body and the plan for the answer."""
