"""Adds and removes content views.

Relies on an internal of ``mitmproxy.contentviews`` 12.2: the registry has no method to remove a view, and stores the
views by name in ``_by_name``.
"""

from __future__ import annotations

from collections.abc import Iterable

from mitmproxy import contentviews
from mitmproxy.contentviews import Contentview


def install(views: Iterable[Contentview]) -> None:
    """Register views."""
    for view in views:
        contentviews.add(view)


def uninstall(views: Iterable[Contentview]) -> None:
    """Remove the views, unless another view has taken their name."""
    for view in views:
        if contentviews.registry.get(view.name) is view:
            del contentviews.registry._by_name[view.name]
