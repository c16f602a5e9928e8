"""The wire formats of the three APIs: converts bytes and dicts to API-neutral values and back.

Only this package handles wire formats. Other modules name an API (``plan.ApiName``) and look up its implementation in
``apis``.
"""
