"""Servers that are no TCPStore. Each prints its port and serves until it is killed."""

import http.server
import socket
import ssl
import sys


def web():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as s:
        print(s.server_port)
        s.serve_forever()


def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate it refuses every handshake
    with socket.create_server(("127.0.0.1", 0)) as s:
        print(s.getsockname()[1])
        while True:
            conn, _ = s.accept()
            try:
                context.wrap_socket(conn, server_side=True).close()
            except OSError:
                conn.close()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
