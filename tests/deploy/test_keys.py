"""Keys are right, secret, and never overwritten."""

import builtins
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy import keys
from coterie.deploy.keys import (
    Authority,
    ExpiryWarning,
    days_left,
    make_authority,
    make_node_key,
    renew_server,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls") / "keys", ["fl.example.org", "192.0.2.7"])


def handshake(authority: Authority, name: str, trusted) -> str:
    """Let a client that trusts `trusted` greet a server as `name`; what the client thinks of it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.server_certificate, authority.server_key)
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def answer():
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.recv(1)
        except OSError:
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            connection.send(b"x")
        return "welcome"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        thread.join()
        theirs.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "fl.example.org", "192.0.2.7"])
def test_the_server_is_believed_under_each_of_its_names(authority, name):
    assert handshake(authority, name, authority.certificate) == "welcome"


def test_the_server_is_not_believed_under_another_name(authority):
    assert "mismatch" in handshake(authority, "other.example.org", authority.certificate)


def test_a_server_of_another_authority_is_not_believed(authority, tmp_path):
    other = make_authority(tmp_path)
    assert handshake(authority, "localhost", other.certificate) not in ("welcome", "")


def test_the_certificates_last_as_long_as_promised(authority):
    for path, days in ((authority.certificate, 3652), (authority.server_certificate, 825)):
        found = x509.load_pem_x509_certificate(path.read_bytes())
        assert (found.not_valid_after_utc - found.not_valid_before_utc).days == days


def test_a_server_certificate_cannot_sign_others(authority):
    found = x509.load_pem_x509_certificate(authority.server_certificate.read_bytes())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_only_the_owner_can_read_private_keys(authority, tmp_path):
    node = make_node_key(tmp_path / "nodes", "clinic-1")
    assert mode(authority.folder) == mode(tmp_path / "nodes") == 0o700
    assert mode(authority.key) == mode(authority.server_key) == mode(node.private) == 0o600


def test_a_node_key_is_ecdsa_on_p_384_in_the_format_of_openssh(tmp_path):
    made = make_node_key(tmp_path, "clinic-1")
    private = serialization.load_ssh_private_key(made.private.read_bytes(), None)
    assert isinstance(private.curve, ec.SECP384R1)
    assert made.public.read_text().endswith(" clinic-1\n")


def test_keys_are_never_overwritten(tmp_path):
    make_authority(tmp_path)
    make_node_key(tmp_path, "one")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CoterieError, match=r"ca\.pem exists already"):
        make_authority(tmp_path)
    with pytest.raises(CoterieError, match=r"one exists already"):
        make_node_key(tmp_path, "one")
    (tmp_path / "one").unlink()
    with pytest.raises(CoterieError, match=r"one\.pub exists already"):
        make_node_key(tmp_path, "one")
    del before[tmp_path / "one"]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("host", ["", "https://x", "x:9092", "a b", "1.2.3", "-x", "x..y"])
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(SettingError, match="a host must be a name or an IP address"):
        make_authority(tmp_path / "keys", [host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "a b", "x.pub"])
def test_a_node_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="the name of a node must be"):
        make_node_key(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


def test_without_flower_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **more):
        if name.split(".")[0] in ("flwr", "cryptography"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingError, match=r"pip install 'coterie\[flower\]'"):
        make_authority(tmp_path)


def test_a_renewed_certificate_is_believed_by_whoever_believed_the_one_before(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(keys, "SERVER_DAYS", 30)
    made = make_authority(tmp_path / "tls", ["fl.example.org"])
    ca, key = made.certificate.read_bytes(), made.server_key.read_bytes()
    monkeypatch.undo()
    assert 29 < days_left(made.server_certificate) < 30
    renew_server(made.folder)
    assert days_left(made.server_certificate) > 800
    assert (made.certificate.read_bytes(), made.server_key.read_bytes()) == (ca, key)
    for name in ("fl.example.org", "localhost"):
        assert handshake(made, name, made.certificate) == "welcome"
    assert handshake(made, "other.example.org", made.certificate) != "welcome"


def test_without_the_authoritys_key_nothing_is_renewed(tmp_path):
    made = make_authority(tmp_path / "tls")
    made.key.unlink()
    before = made.server_certificate.read_bytes()
    with pytest.raises(SettingError, match=r"there is no file .*ca\.key, which a renewal needs"):
        renew_server(made.folder)
    assert made.server_certificate.read_bytes() == before


@pytest.mark.parametrize(
    ("days", "words"), [(60.2, ""), (59.2, "expires in 59 days"), (-1.2, "has expired")]
)
def test_a_warning_comes_from_60_days_before_and_once_a_day(tmp_path, monkeypatch, days, words):
    made = make_authority(tmp_path / "tls")
    monkeypatch.setattr(
        keys, "days_left", lambda path: days if path == made.server_certificate else 3000
    )
    said, warning = [], ExpiryWarning(made)
    for _ in range(3):
        warning.warn(said.append)
    assert len(said) == bool(words)
    if words:
        assert words in said[0]
        assert f"coterie deploy keys {made.folder} --renew" in said[0]
        warning.said_at -= 86_400
        warning.warn(said.append)
        assert len(said) == 2
