"""The only folder that uses mitmproxy's undocumented interfaces. Written for mitmproxy 12.2.

All other code uses the documented interface: hooks, options, commands, content views, and the attributes of flows and
messages. ``tests/test_architecture.py`` enforces both halves: private names, and assignments to foreign objects, occur
in this folder only.

When mitmproxy changes, this folder changes. Each module docstring lists the internals that it relies on. ``README.md``
in this folder has the complete list, the consequences of doing without each, and the change to mitmproxy that would
make it unnecessary. ``installing.check`` reports at startup what is missing.
"""
