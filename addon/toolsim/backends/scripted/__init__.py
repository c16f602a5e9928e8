"""A scripted text-only model, for trying things without a model.

``backend`` streams the answers, ``script`` writes them; ``tool_selection`` finds the tools that a question is about,
and ``argument_extraction`` extracts their arguments from it.
"""
