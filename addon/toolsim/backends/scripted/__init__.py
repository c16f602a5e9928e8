"""A scripted text-only model, for trying things without a model.

``backend`` speaks, ``script`` knows what to say; ``choose`` finds the tools that a question is about, ``fill`` their
arguments in its words.
"""
