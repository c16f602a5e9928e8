"""The only folder that uses mitmproxy's undocumented interfaces. Written for mitmproxy 12.2.

All other code uses the documented interface: hooks, options, commands, content views, and the attributes of flows and
messages. ``tests/test_architecture.py`` enforces this rule: private names and assignments to mitmproxy's objects occur
only in this folder.

When mitmproxy changes, only this folder has to change. Each module docstring lists the internals that the module relies
on. For each module, ``README.md`` in this folder lists these internals, what toolsim could not do without the module,
and the change to mitmproxy that would make the module unnecessary. ``patches.check`` reports missing internals at
startup.
"""
