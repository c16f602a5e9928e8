"""Implements a scripted text-only model, for trying toolsim without a real model.

``script`` generates the answers, and ``backend`` streams them. ``tool_selection`` finds the tools that a question
needs, and ``argument_extraction`` extracts the arguments from the question.
"""
