"""Adds and removes content views.

Relies on an internal of ``mitmproxy.contentviews`` 12.2: the registry has no method to remove a view, and stores the
views by name in ``_by_name``.
"""

from __future__ import annotations

from collections.abc import Iterable

from mitmproxy import contentviews
from mitmproxy.contentviews import Contentview


def install(views: Iterable[Contentview]) -> None:
    """Register content views."""
    for view in views:
        contentviews.add(view)


def uninstall(views: Iterable[Contentview]) -> None:
    """Remove these content views, except any that another view with the same name has replaced."""
    for view in views:
        if contentviews.registry.get(view.name) is view:
            del contentviews.registry._by_name[view.name]
