"""Decides which of the tools that a backend runs (``web_search``, ``mcp``, …) are forwarded, and reports the others.

| the request has               | a backend with the same API                      | a backend with another API   |
|-------------------------------|--------------------------------------------------|------------------------------|
| only backend-run tools        | receives them                                    | 400: not in that API         |
| functions as well             | receives them with                               | dropped, with a warning      |
|                               | ``toolsim_forward_hosted_tools``, else they are  |                              |
|                               | dropped, with a warning                          |                              |
| a ``tool_choice`` that names  | 400                                              | 400                          |
| a dropped tool                |                                                  |                              |

A backend might reject tools that it does not know. If the request also has functions, which toolsim can serve without
the backend's help, the operator decides whether to forward the other tools. Tools are dropped without a warning if the
client forbids all calls (``tool_choice: none``), or if the operator's lists exclude them by their type or by an MCP
server's label. A ``tool_choice`` that requires such a dropped tool causes a 400. ``mcp_servers`` of a Messages request
that toolsim does not run itself always cause a 400.

A client's own tool is treated like a backend-run tool if its ``allowed_callers`` include only programs that run on the
backend (``programmatic_tool_calling``), and not the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report, entry, loggable_name
from toolsim.wire.hosted_items import WEB_SEARCH
from toolsim.wire.json_fields import mappings, string
from toolsim.wire.tool_choice import wanted_of_backend
from toolsim.wire.tools import Hosted

_TOOLSET = "mcp_toolset"
_WITH_SEARCH = 'set "web_search" for a server in toolsim_mcp_config, so that toolsim itself runs web searches'

DROPPED = "TOOL_DROPPED"
"""The code of the warning that a backend-run tool was not forwarded."""


def excludes_any(body: Mapping[str, Any], policy: Policy) -> bool:
    """Return whether the operator's lists exclude any tool in ``body``."""
    return any(_is_excluded(tool, policy) for tool in mappings(body.get("tools")))


def with_backend_tools(request: ClientRequest, backend: ApiName, policy: Policy, report: Report) -> ClientRequest:
    """Return the request without the backend-run tools that are not forwarded, and report these tools as dropped.

    If ``policy.mode`` is native and the backend has the client's API, all tools that the operator's lists allow are
    forwarded.

    Raises BadRequest if the request cannot be answered without a dropped tool, or has MCP servers that are not
    forwarded.
    """
    allowed = tuple(tool for tool in request.hosted if not _is_excluded(tool, policy))
    is_same = backend == request.api
    is_native = policy.mode == "native" and is_same
    passes = is_same and (is_native or policy.forward_hosted_tools or not request.tools)
    forbidden = request.tool_choice.mode == "none"
    if not passes and not forbidden and any(tool.get("type") == _TOOLSET for tool in allowed):
        message = "'mcp_servers' is not supported: toolsim_mcp_hosts must list the hosts of the servers."
        raise BadRequest(message, "mcp_servers", "unsupported_parameter")
    if not passes and allowed and not request.tools and not forbidden:
        raise _no_form(allowed, request.api, backend)
    kept = allowed if passes else ()
    left_out = [_label(tool) for tool in request.hosted if tool not in kept]
    choice = request.body.get("tool_choice")
    wanted = wanted_of_backend(choice, {tool.name for tool in request.tools})
    if choice == "required" and not kept and not request.tools:
        wanted = left_out[0]
    if left_out and wanted and not forbidden and wanted not in [string(tool.get("type")) for tool in kept]:
        raise _unavailable(wanted, is_allowed=len(allowed) == len(request.hosted))
    report.dropped += [f"tool:{kind[:40]}" for kind in left_out]
    if not forbidden and not passes:
        report.warnings += [entry(DROPPED, loggable_name(_label(tool))) for tool in allowed]
    if not left_out:
        # If all backend-run tools are forwarded, the tool choice is forwarded as well, so it was not dropped after all.
        report.dropped[:] = [note for note in report.dropped if not (kept and note.startswith("tool_choice:"))]
        return request
    return replace(request, hosted=kept)


def _label(tool: Hosted) -> str:
    """Return the type of a backend-run tool. For a client's own tool, return its name if it has one."""
    kind = string(tool.get("type"))
    return string(tool.get("name")) or kind if kind in ("function", "custom", "namespace") else kind


def _is_excluded(tool: Hosted, policy: Policy) -> bool:
    return policy.excludes((_label(tool), string(tool.get("server_label"))))


def _no_form(tools: tuple[Hosted, ...], client: ApiName, backend: ApiName) -> BadRequest:
    kinds = dict.fromkeys(_label(tool)[:40] for tool in tools)
    message = (
        f"'tools' contains only tools that a backend must run ({', '.join(kinds)}), but this backend uses the "
        f"{backend} API, which does not have them. Send functions, or use a backend with the {client} API "
        "(toolsim_backend)"
    )
    hints = ["set toolsim_mcp_hosts, so that toolsim itself runs mcp tools"] if "mcp" in kinds else []
    hints += [_WITH_SEARCH] if any(kind.startswith(WEB_SEARCH) for kind in kinds) else []
    return BadRequest("; ".join([message, *hints]) + ".", "tools", "unsupported_value")


def _unavailable(wanted: str, *, is_allowed: bool) -> BadRequest:
    kind = wanted[:40]
    message = f"'tool_choice' requires '{kind}', which a backend must run, but toolsim does not forward this tool"
    if not is_allowed:
        message += " (toolsim_tool_allowlist)."
    else:
        message += " alongside functions: set toolsim_forward_hosted_tools if the backend can run it"
        message += ", or toolsim_mcp_hosts." if kind == "mcp" else "."
        message += f" Or {_WITH_SEARCH}." if kind.startswith(WEB_SEARCH) else ""
    return BadRequest(message, "tool_choice", "unsupported_value")
