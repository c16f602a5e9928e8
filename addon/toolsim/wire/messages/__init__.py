"""Anthropic's Messages API: requests in the shape of chat completions, answers in its own blocks and events."""
