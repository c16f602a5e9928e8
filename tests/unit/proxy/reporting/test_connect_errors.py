"""Explanations of connection errors, which add a remedy to the error messages of libraries."""

from __future__ import annotations

import ssl

from support.each import each
from toolsim.proxy.reporting.connect_errors import explain


@each(
    ("said", "words"),
    [
        ("The remote server does not speak TLS.", "did you mean http://?"),
        ("Certificate verify failed: self-signed certificate", "(self-signed certificate): set ssl_verify"),
        ("[Errno 111] Connect call failed ('127.0.0.1', 9)", "is the server running?"),
        ("Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0)", "is the server running?"),
        ("[Errno -2] Name or service not known", "the host name cannot be resolved"),
        ("server closed connection", "has it crashed, or did you mean https://?"),
        ("server closed connection after 5 bytes", "server closed connection after 5 bytes"),
        ("HTTP 599: whatever", "HTTP 599: whatever"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "did you mean http://?"),
        (TimeoutError(), "no answer within 5 s"),
    ],
)
def test_reason_is_explained_with_a_remedy(said: object, words: str) -> None:
    """A known connection error is explained, together with a remedy. An unknown error is quoted unchanged."""
    assert words in explain(said, 5)
