"""Anthropic's Messages API. Requests are converted to the shape of chat completions, but answers are read and written
directly.
"""
