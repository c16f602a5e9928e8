from __future__ import annotations

from mitmproxy.test import tflow
from toolsimlib.proxy.via import Via


def test_each_listener_knows_its_own_name_alone() -> None:
    """A listener recognises a request that it has signed, and no other listener does, here or in another process."""
    here, there, elsewhere = Via(), Via(), tflow.tclient_conn()
    client = tflow.tclient_conn()
    client.sockname, elsewhere.sockname = ("127.0.0.1", 8080), ("127.0.0.1", 8081)
    assert not here.has_passed("", client)
    via = here.signed("", client)
    assert here.has_passed(via, client)
    assert not here.has_passed(via, elsewhere)
    assert not there.has_passed(via, client)


def test_what_others_have_signed_stays() -> None:
    """Entries of other proxies are kept in order, whatever their form; our own comes last, and once."""
    via, client = Via(), tflow.tclient_conn()
    header = "1.0 fred (odd), HTTP/1.1 p.example.net,  , 2 three"
    for _ in range(2):
        header = via.signed(header, client)
        *others, own = header.split(", ")
        assert others == ["1.0 fred (odd)", "HTTP/1.1 p.example.net", "2 three"]
        assert own.startswith("1.1 toolsim-")
    assert via.has_passed(header, client)
