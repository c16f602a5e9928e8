"""Function calling for text-only model backends, as a mitmproxy addon: the house, whose floors ``README.md`` lists.

Imports run one way, from bottom to top; only ``proxy``, the top floor, imports mitmproxy. The other packages
beside it are guests: they use it, and it does not know them.
"""
