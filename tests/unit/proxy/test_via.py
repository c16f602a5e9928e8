from __future__ import annotations

from mitmproxy.http import Headers
from mitmproxy.test import tflow
from toolsimlib.proxy.via import Via


def test_each_listener_knows_its_own_name_alone() -> None:
    """A request that a listener has signed is known to it, and to no other one, of this process or of another."""
    here, there, elsewhere = Via(), Via(), tflow.tclient_conn()
    client = tflow.tclient_conn()
    client.sockname, elsewhere.sockname = ("127.0.0.1", 8080), ("127.0.0.1", 8081)
    headers = Headers()
    assert not here.has_passed(headers, client)
    here.sign(headers, client)
    assert here.has_passed(headers, client)
    assert not here.has_passed(headers, elsewhere)
    assert not there.has_passed(headers, client)


def test_what_others_have_signed_stays() -> None:
    """Entries of other proxies are kept in order, whatever their form; one's own comes last, and once."""
    via, client = Via(), tflow.tclient_conn()
    headers = Headers([(b"Via", b"1.0 fred (odd), HTTP/1.1 p.example.net"), (b"Via", b" , 2 three")])
    for _ in range(2):
        via.sign(headers, client)
        *others, own = headers["via"].split(", ")
        assert others == ["1.0 fred (odd)", "HTTP/1.1 p.example.net", "2 three"]
        assert own.startswith("1.1 toolsim-")
    assert via.has_passed(headers, client)
