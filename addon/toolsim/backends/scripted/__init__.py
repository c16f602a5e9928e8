"""A scripted text-only model, for trying things without a model.

``backend`` streams the answers, ``script`` writes them; ``choose`` finds the tools that a question is about, and
``fill`` extracts their arguments from it.
"""
