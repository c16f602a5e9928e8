"""The mitmproxy script: ``mitmdump -s addon/toolsim.py``. If run as a program, it is the ``toolsim`` command.

If the version of Python or mitmproxy is unsupported, or a package is missing, a one-line error is reported and
mitmproxy exits.
"""

import logging
import os
import sys
from importlib.util import find_spec

if sys.version_info < (3, 12):  # noqa: UP036 - a checkout is not installed, so nothing has checked this.
    # Older versions of Python cannot parse the modules that are imported below.
    sys.exit(f"toolsim needs Python 3.12 or newer, and this is Python {sys.version.split()[0]} ({sys.executable})")

# mitmproxy and Python put this file's folder first on the path. If the folder contains the package ``toolsim``, the
# package takes precedence over this file. Otherwise, this file would hide the installed package, so the folder is
# removed from the path.
_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "toolsim")):
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]

from mitmproxy.version import VERSION  # noqa: E402

_MITMPROXY = ((12, 2, 1), (13,))
"""The oldest supported version of mitmproxy, and the first version that is not supported."""


def _addons() -> list[object]:
    if not _MITMPROXY[0] <= tuple(int(part) for part in VERSION.split(".")[:3] if part.isdigit()) < _MITMPROXY[1]:
        logging.error("toolsim needs mitmproxy>=12.2.1,<13, and this is mitmproxy %s (%s)", VERSION, sys.executable)
        return []
    try:
        # These packages are imported only when the first schema is compiled, but a missing package is reported at
        # startup.
        for package in ("jsonschema", "regex"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        from toolsim.otel import start as traces
        from toolsim.pages.commands import Inspect
        from toolsim.proxy.addon import ToolSim
        from toolsim.recordings.capture import Capture
        from toolsim.recordings.commands import Commands
        from toolsim.recordings.server_replay import ServerReplay
    except ModuleNotFoundError as problem:
        from toolsim.command_line import missing

        logging.error("%s", missing(problem))
        return []
    server_replay, tracing = ServerReplay(), traces.addons(os.environ)
    return [server_replay, ToolSim(), Capture(), server_replay.handover, *tracing, Commands(), Inspect()]


if __name__ == "__main__":
    from toolsim.cli.main import main

    sys.exit(main())

addons = _addons()
