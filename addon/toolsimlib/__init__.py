"""Function calling for text-only model backends, as a mitmproxy addon.

Imports run one way, from bottom to top: the words (``errors``, ``events``, ``conversation``, ``plan``, ``report``,
``values``, ``version``, ``command_line``) and ``schema``; then the wings ``wire``, ``request`` beside ``response``,
``backends`` beside ``pages``, ``proxy``, ``recordings``, ``evaluation`` and ``cli``. Only the last four import
mitmproxy.
"""
