"""The entry: ``mitmdump -s addon/toolsim.py``."""

from toolsimlib.proxy.addon import ToolSim

addons = [ToolSim()]
