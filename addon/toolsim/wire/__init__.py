"""The three APIs on the wire: bytes and dicts to neutral values and back.

Only this package knows the wire formats. Other modules name an API (``plan.ApiName``) and get the object that speaks it
from ``dialect``.
"""
