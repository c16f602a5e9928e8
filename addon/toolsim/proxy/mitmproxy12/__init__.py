"""The only folder that touches what mitmproxy does not document. Written for mitmproxy 12.2.

Everything else in toolsim uses the documented interface: hooks, options, commands, content views, and
the attributes of flows and messages. ``tests/test_architecture.py`` enforces both halves: private names, and
assignments to objects that are not ours, occur in this folder, and in no other.

When mitmproxy changes, this folder changes. Each room opens with what it relies on; ``README.md``
beside this file has the whole list, with what happens without it, and the change to mitmproxy that
would make it unnecessary. ``installing.check`` says at the start what is missing.
"""
