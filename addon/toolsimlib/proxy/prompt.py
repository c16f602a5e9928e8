"""Runs hooks whose handlers need not wait inline, without a task of their own.

mitmproxy runs each hook in a task. The event loop starts it after everything else that is ready, and its completion
travels down through all layers again to the waiting stream. Three hooks precede the first text of an answer, and few
handlers wait for anything. So a stream runs these three itself and continues at once. If a handler does have to wait,
for a worker or for a person, mitmproxy waits for it as usual.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2:

1. A state of ``HttpStream`` yields a hook as a command, and gets no reply except that it has completed.
2. At that point the connection's layer is in the middle of what it has read: we may write to other connections, but
   not to this one. So if an addon has answered a request or ended a flow, we leave the rest to mitmproxy. We also
   leave it ``response``, since the client's next request may follow.
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
    """A stream that itself runs the hooks that precede an answer."""

    @override
    def state_wait_for_request_headers(self, event: RequestHeaders) -> CommandGenerator[None]:
        return self.inline(super().state_wait_for_request_headers(event))

    @override
    def state_consume_request_body(self, event: Event) -> CommandGenerator[None]:
        return self.inline(super().state_consume_request_body(event))

    @override
    def state_wait_for_response_headers(self, event: ResponseHeaders) -> CommandGenerator[None]:
        return self.inline(super().state_wait_for_response_headers(event))

    def inline(self, commands: CommandGenerator[None]) -> CommandGenerator[None]:
        """Pass on the commands of a state, except hooks that have completed inline."""
        reply: Any = None
        while True:
            try:
                command = commands.send(reply)
            except StopIteration:
                return
            reply = None if type(command) in _HOOKS and self.runs_inline(command) else (yield command)

    def runs_inline(self, hook: Command) -> bool:
        """Run a hook; return whether it has completed and the state may continue normally."""
        assert isinstance(hook, StartHook)
        dispatch = ctx.master.addons.get("dispatch")  # type: ignore[no-untyped-call]
        if not isinstance(dispatch, Dispatch):
            return False
        flow, task = self.flow, dispatch.begin(hook)
        is_answered = flow.response is not None and type(hook) is not HttpResponseHeadersHook
        is_through = task.done() and not task.cancelled() and task.exception() is None
        if is_through and not (is_answered or flow.error or flow.intercepted):
            return True
        dispatch.started[hook] = task
        return False
