"""The command lines of a node's processes."""

import pytest

from coterie.core.errors import SettingError
from coterie.deploy.process_commands import node_commands, quote_path


def test_a_path_with_both_kinds_of_quotes_is_refused(tmp_path):
    with pytest.raises(SettingError, match="both kinds of quotes"):
        quote_path(tmp_path / "'\"")


def test_a_worker_and_its_supernode_share_a_secret_that_nobody_else_can_read(tmp_path):
    one, two = (
        node_commands(tmp_path / "n", "x:1", None, None, tmp_path, name, 5, worker=["do"])
        for name in ("1", "2")
    )
    secret = tmp_path / "1.secret"
    assert one.worker == ["do", str(tmp_path / "n"), "127.0.0.1:5", str(secret), str(one.ready)]
    assert one.supernode[one.supernode.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert secret.stat().st_mode & 0o077 == 0
    assert len(secret.read_bytes()) == 32
    assert secret.read_bytes() != (tmp_path / "2.secret").read_bytes()
    assert one.ready != two.ready
