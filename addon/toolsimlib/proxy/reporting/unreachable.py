"""Why a server cannot be asked, in words that name the remedy."""

from __future__ import annotations

import http.client
import socket
import ssl


def reason(problem: object, seconds: float) -> str:
    """Return one line on what went wrong within ``seconds``: an exception, or text from a library."""
    match problem:
        case TimeoutError():
            return f"no answer within {seconds:g} s"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({problem.verify_message}): set ssl_verify_upstream_trusted_ca to the "
                "file of its certificate authority, or ssl_insecure=true to trust any"
            )
        case ssl.SSLError():
            return "it does not speak https; did you mean http://?"
        case socket.gaierror():
            return "there is no host of that name"
        case ConnectionRefusedError():
            return "the connection is refused: is the server running?"
        case ConnectionResetError():
            return "it closed the connection: does it want https://?"
        case http.client.IncompleteRead():
            return "its answer broke off"
        case UnicodeError():
            return f"its URL cannot be sent as it is ({problem})"
        case http.client.HTTPException():
            return "it does not speak HTTP; did you mean https://?"
        case OSError():
            return problem.strerror or str(problem)
    return str(problem)
