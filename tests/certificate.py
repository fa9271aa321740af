"""Self-signed certificates for servers in tests."""

import ssl
import subprocess
from pathlib import Path


def self_signed(folder: Path, address: str = "127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """What a server at `address` shows, and the file that a client must trust for it."""
    key, certificate = folder / f"{address}.key", folder / f"{address}.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -keyout {key} -out {certificate} -subj /CN=localhost -addext subjectAltName=IP:{address}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
