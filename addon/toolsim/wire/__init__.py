"""The three APIs on the wire: converts bytes and dicts to neutral values and back.

Only this package contains wire formats. Other modules name an API (``plan.ApiName``) and get its implementation from
``apis``.
"""
