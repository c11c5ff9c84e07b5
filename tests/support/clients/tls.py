"""One TLS context for all clients of httpx in a test process, also those of the SDKs.

Each client reads the certificates of all authorities, 25 ms of processor time, and a test of
a service on loopback may make a client for each look at it.
"""

from __future__ import annotations

import importlib
import os
import ssl
from typing import Any


def share_context() -> None:
    """Let clients with the default verification have the context of the first one."""
    transports = importlib.import_module("httpx._transports.default")
    create = transports.create_ssl_context
    made: dict[object, ssl.SSLContext] = {}

    def shared(*, verify: Any, cert: Any, trust_env: bool) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            own: ssl.SSLContext = create(verify=verify, cert=cert, trust_env=trust_env)
            return own
        named = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if named not in made:
            made[named] = create(verify=verify, cert=cert, trust_env=trust_env)
        return made[named]

    vars(transports)["create_ssl_context"] = shared
