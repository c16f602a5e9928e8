"""The entry: ``mitmdump -s addon/toolsim.py``."""

from toolsimlib.proxy.addon import ToolSim
from toolsimlib.proxy.capture import Capture

addons = [ToolSim(), Capture()]
