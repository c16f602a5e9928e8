"""The entry: ``mitmdump -s addon/toolsim.py``."""

from toolsimlib.proxy.addon import ToolSim
from toolsimlib.proxy.commands import Inspect
from toolsimlib.recordings.capture import Capture
from toolsimlib.recordings.pseudonymise import Pseudonymise
from toolsimlib.recordings.replay import Replay
from toolsimlib.recordings.server_replay import ServerReplay

server_replay = ServerReplay()
addons = [server_replay, ToolSim(), Capture(), server_replay.handover, Replay(), Pseudonymise(), Inspect()]
