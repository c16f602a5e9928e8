"""Hooks that wait for nothing run where they are met, without a task of their own.

mitmproxy runs each hook in a task. The event loop starts it once everything else that is ready has had its turn, and
its result goes down through all layers again, to the stream that waits. Three hooks come before the first text of an
answer, and few handlers wait for anything. So a stream runs these three itself, and goes on at once. If a handler does
have to wait, for a worker or for a person, mitmproxy waits for it in its own way.

What this leans on, in ``mitmproxy.proxy.layers.http`` 12.2:

1. A state of ``HttpStream`` yields a hook as a command, and gets nothing back but that it is over.
2. At that point the layer of the connection is in the middle of what it has read: other connections may be written to,
   but not this one. So if an addon has answered a request, or ended a flow, the rest is left to mitmproxy; so is
   ``response``, behind which the client's next request may come.
"""

from __future__ import annotations

from typing import Any, override

from mitmproxy import ctx
from mitmproxy.proxy.commands import Command, StartHook
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import HttpStream
from mitmproxy.proxy.layers.http._events import RequestHeaders, ResponseHeaders
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook, HttpRequestHook, HttpResponseHeadersHook

from toolsimlib.proxy.dispatch import Dispatch

_HOOKS = frozenset({HttpRequestHeadersHook, HttpRequestHook, HttpResponseHeadersHook})


class PromptStream(HttpStream):
    """A stream that runs the hooks on the way to an answer itself."""

    @override
    def state_wait_for_request_headers(self, event: RequestHeaders) -> CommandGenerator[None]:
        return self.promptly(super().state_wait_for_request_headers(event))

    @override
    def state_consume_request_body(self, event: Event) -> CommandGenerator[None]:
        return self.promptly(super().state_consume_request_body(event))

    @override
    def state_wait_for_response_headers(self, event: ResponseHeaders) -> CommandGenerator[None]:
        return self.promptly(super().state_wait_for_response_headers(event))

    def promptly(self, commands: CommandGenerator[None]) -> CommandGenerator[None]:
        """Pass a state's commands on, except for hooks that are over by then."""
        reply: Any = None
        while True:
            try:
                command = commands.send(reply)
            except StopIteration:
                return
            reply = None if type(command) in _HOOKS and self.is_over(command) else (yield command)

    def is_over(self, hook: Command) -> bool:
        """Run a hook; return whether all goes on as if nobody had been asked."""
        assert isinstance(hook, StartHook)
        dispatch = ctx.master.addons.get("dispatch")  # type: ignore[no-untyped-call]
        if not isinstance(dispatch, Dispatch):
            return False
        flow, task = self.flow, dispatch.begin(hook)
        is_answered = flow.response is not None and type(hook) is not HttpResponseHeadersHook
        is_through = task.done() and not task.cancelled() and task.exception() is None
        if is_through and not (is_answered or flow.error or flow.intercepted):
            return True
        dispatch.begun[hook] = task
        return False
