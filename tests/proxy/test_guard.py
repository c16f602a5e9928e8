"""Tests that toolsim passes on no unchecked data if a hook of another script raises an exception."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.line import Line
from support.mitmdump import ADDON, Mitmdump
from support.raw_backend import Answer, RawBackend

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
# If the path does not belong to an API, the body is streamed, so the ``request`` and ``response`` hooks are called too
# late to stop it.
CASES = {
    "/v1/chat/completions": ("requestheaders", "request", "responseheaders", "response"),
    "/other": ("requestheaders", "responseheaders"),
}


async def answer(to: Answer) -> None:
    await to.whole(b'{"secret": 1}', Content_Type="application/json")


@pytest.mark.parametrize(("path", "hook"), [(path, hook) for path, hooks in CASES.items() for hook in hooks])
def test_exception_in_another_script_blocks_traffic(path: str, hook: str, tmp_path: Path) -> None:
    """If a script that was loaded earlier raises an exception in a hook, mitmproxy does not call toolsim's hook. Even
    then, unchecked data is not passed on.
    """
    script = tmp_path / "first.py"
    script.write_text(f"def {hook}(flow):\n    if flow.request.method == 'POST':\n        raise KeyError('first')\n")
    with RawBackend() as backend:
        backend.play(answer)
        arguments = ("-s", str(script), "-s", str(ADDON))
        with Mitmdump(
            backend.url, script=None, arguments=arguments, allow_crashes=True, toolsim_api_key="k", toolsim_log="json"
        ) as proxy:
            # If an error were logged during startup, mitmproxy would exit.
            proxy.wait_for("toolsim is up")
            with Line(proxy.url) as line:
                reply = line.post(path, BODY, authorization="Bearer k")
            assert reply.status in (500, 502)
            assert b"secret" not in reply.body
            assert len([asked for asked in backend.asked if asked.method == "POST"]) == hook.startswith("response")
            with Line(proxy.url) as line:
                page = line.request("GET", "/toolsim/metrics", authorization="Bearer k").body.decode()
            assert re.search("^toolsim_exchanges_in_progress 0$", page, re.MULTILINE)
