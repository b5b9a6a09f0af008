"""An S3 server of this machine, in memory: `python -m tests.integration.programs.s3_server`."""

from __future__ import annotations

import threading

from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from dataservice.runtime.process.children import announce_ready, exit_with_parent


def main() -> None:
    exit_with_parent()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    announce_ready(address=f"http://{host}:{port}")
    threading.Event().wait()


if __name__ == "__main__":
    main()
