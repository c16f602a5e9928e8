"""Anthropic's Messages API: reads requests through the shape of chat completions, and answers directly."""
