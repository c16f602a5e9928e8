"""The comment column and hidden rows in mitmweb's flow list. The tests in tests/web use a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons.view import View
from mitmproxy.test import taddons, tflow
from mitmproxy.tools.web import webaddons
from mitmproxy.tools.web.app import Application
from mitmproxy.tools.web.web_columns import AVAILABLE_WEB_COLUMNS
from toolsim.proxy.mitmproxy12 import web
from tornado.web import Application as TornadoApplication

STATIC = Path(webaddons.__file__).parent / "static"


def test_comments_are_shown_unless_columns_were_chosen() -> None:
    """The comment column is shown in mitmweb by default, but not if the user has chosen which columns to show."""
    assert set(web.COLUMNS) <= set(AVAILABLE_WEB_COLUMNS)
    with taddons.context() as plain:
        web.show_comments(plain.options)
        assert "web_columns" not in plain.options
    with taddons.context(webaddons.WebAddon()) as mitmweb:
        web.show_comments(mitmweb.options)
        assert mitmweb.options.web_columns == list(web.COLUMNS)
        mitmweb.options.update(web_columns=["path"])
        web.show_comments(mitmweb.options)
        assert mitmweb.options.web_columns == ["path"]


def test_column_is_widened_once_in_mitmweb() -> None:
    """Widening the comment column a second time has no effect. In a program other than mitmweb, nothing is changed."""
    assert issubclass(Application, TornadoApplication)
    application = TornadoApplication(static_path=str(STATIC))
    web.widen_comments(application)
    rules = len(application.default_router.rules)
    web.widen_comments(application)
    assert len(application.default_router.rules) == rules
    web.widen_comments(None)


def test_missing_style_sheet_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If mitmweb lacks the style sheet that toolsim extends, nothing is changed, and a message is logged."""
    caplog.set_level("INFO")
    web.widen_comments(TornadoApplication(static_path=str(tmp_path)))
    assert "stays narrow" in caplog.text


@pytest.mark.parametrize("live", [True, False])
def test_hiding_a_flow_does_not_abort_it(live: bool) -> None:
    view: Any = View()
    with taddons.context(view):
        flow, other = tflow.tflow(), tflow.tflow()
        flow.live = live
        view.add([flow, other])
        web.hide(flow)
        assert list(view) == [other]
        assert (flow.live, flow.error) == (live, None)


def test_hiding_without_a_flow_list_does_nothing() -> None:
    with taddons.context():
        web.hide(tflow.tflow())
