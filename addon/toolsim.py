"""The entry: ``mitmdump -s addon/toolsim.py``."""

from toolsimlib.proxy.addon import ToolSim
from toolsimlib.proxy.capture import Capture
from toolsimlib.proxy.commands import Inspect

addons = [ToolSim(), Capture(), Inspect()]
