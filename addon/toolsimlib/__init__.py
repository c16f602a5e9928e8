"""Function calling for text-only model backends, as a mitmproxy addon.

Imports run one way, from bottom to top: the shared modules (``errors``, ``events``, ``conversation``, ``plan``,
``report``, ``values``, ``version``, ``command_line``) and ``schema``; then the packages ``wire``, ``request`` beside
``response``, ``backends`` beside ``pages``, ``proxy``, ``recordings``, ``evaluation`` and ``cli``. Only the last four
import mitmproxy.
"""
