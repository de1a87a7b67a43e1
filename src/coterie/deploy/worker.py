"""The process of a node that has torch and the data loaded, and answers its messages.

    python -m coterie.deploy.worker NODE.toml HOST:PORT SECRET READY

HOST:PORT is where the node's SuperNode answers, SECRET a file with the secret that both share, and
READY a file that is made when the worker is ready.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_worker import answer_messages
from coterie.flower.node import NodeWorker
from coterie.flower.node_file import NodeFile
from coterie.tensors.threads import adaptive_threads


def main(node: str, supernode: str, secret: str, ready: str) -> None:
    """Answer messages until the process is ended."""
    worker = NodeWorker(NodeFile.read(Path(node)))
    with adaptive_threads():
        answer_messages(worker, supernode, Path(secret).read_bytes(), Path(ready))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CoterieError as error:
        sys.exit(f"coterie: {error}")
