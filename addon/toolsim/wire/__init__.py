"""Converts between the wire formats of the three APIs, bytes and dicts, and API-neutral values.

Only this package handles wire formats. Other modules name an API (``policy.ApiName``) and look up its implementation in
``apis``.
"""
