"""Explains why a server could not be reached, and how to solve the problem."""

from __future__ import annotations

import http.client
import re
import socket
import ssl

_NO_TLS = "the server does not use TLS; did you mean http://?"
_NO_HOST = "the host name cannot be resolved"
_REFUSED = "the connection was refused; is the server running?"
_CLOSED = "the server closed the connection; did you mean https://?"

# Messages from mitmproxy, Tornado and the operating system, and their replacements.
_SAID = (
    (r"does not speak TLS|WRONG_VERSION_NUMBER", _NO_TLS),
    (r"(?i)connect call failed|connection refused", _REFUSED),
    (r"(?i)name or service not known|name resolution|getaddrinfo failed|nodename nor servname", _NO_HOST),
    # Either the server expects TLS, or it crashed during the request.
    (r"^server closed connection$", "the server closed the connection; has it crashed, or did you mean https://?"),
)
_CERTIFICATE = re.compile(r"certificate verify failed: ([^(\n]{1,200})", re.IGNORECASE)


def explain(problem: object, seconds: float = 0) -> str:
    """Explain in one line why a server could not be reached.

    ``problem`` is an exception or a message from a library, and ``seconds`` is the timeout.
    """
    match problem:
        case TimeoutError():
            return f"no answer within {seconds:g} s"
        case ssl.SSLCertVerificationError():
            return _untrusted(problem.verify_message)
        case ssl.SSLError():
            return _NO_TLS
        case socket.gaierror():
            return _NO_HOST
        case ConnectionRefusedError():
            return _REFUSED
        case ConnectionResetError():
            return _CLOSED
        case http.client.IncompleteRead():
            return "the answer ended prematurely"
        case UnicodeError():
            return f"the URL has characters that must be escaped ({problem})"
        case http.client.HTTPException():
            return "the server does not use HTTP; did you mean https://?"
        case OSError():
            return problem.strerror or str(problem)
    return _instead(str(problem))


def _instead(said: str) -> str:
    if found := _CERTIFICATE.search(said):
        return _untrusted(found[1].strip())
    return next((words for pattern, words in _SAID if re.search(pattern, said)), said)


def _untrusted(why: str) -> str:
    return (
        f"the server's certificate is not trusted ({why}): set ssl_verify_upstream_trusted_ca to the certificate file "
        "of its authority, or ssl_insecure=true to accept any certificate"
    )
