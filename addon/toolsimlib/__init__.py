"""Function calling for text-only model backends, as a mitmproxy addon.

Imports run one way, from bottom to top: the words (``errors``, ``events``, ``conversation``, ``plan``, ``report``),
then the wings ``wire``, ``request`` and ``response``, then ``backends``, then ``proxy``. Only ``proxy`` imports
mitmproxy.
"""
