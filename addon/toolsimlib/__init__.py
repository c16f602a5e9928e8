"""Function calling for text-only model backends, as a mitmproxy addon.

Imports run one way, from bottom to top: the words (``errors``, ``events``, ``conversation``, ``plan``, ``report``,
``version``) and ``schema``; then the wings ``wire``, ``request`` beside ``response``, ``backends`` beside ``pages``,
``proxy``, and ``recordings``. Only ``proxy`` and ``recordings`` import mitmproxy.
"""
