"""The two APIs on the wire: bytes and dicts to neutral values and back.

Only this wing knows how an API spells things. Everyone else names an API (``plan.Dialect``) and asks ``dialect`` for
the object that speaks it.
"""
