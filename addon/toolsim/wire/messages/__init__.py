"""Anthropic's Messages API: requests as chat completions' requests, answers in its own blocks and events."""
