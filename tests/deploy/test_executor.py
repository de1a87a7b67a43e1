"""What a worker does with messages that are not as they should be."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.supercore.runtime import RuntimeHttpClient

from coterie.core.errors import CoterieError
from coterie.deploy import executor


def test_a_worker_that_cannot_hand_over_a_reply_ends(monkeypatch, tmp_path):
    # Its SuperNode waits for that reply for ever; the node is then started again.
    closed = []
    supernode = SimpleNamespace(
        AcquireTask=lambda request: SimpleNamespace(HasField=lambda name: True, token="token"),
        close=lambda: closed.append(True),
    )

    def answer(handle, address, token):
        assert (tmp_path / "ready").exists()
        raise ConnectionError(f"{address} hung up on {token}")

    monkeypatch.setattr(RuntimeHttpClient, "from_server_address", lambda **words: supernode)
    monkeypatch.setattr(executor, "answer", answer)
    with pytest.raises(CoterieError, match=r"not be answered: ConnectionError: x:1 hung up on tok"):
        executor.execute(lambda message, context: message, "x:1", b"secret", tmp_path / "ready")
    assert closed
