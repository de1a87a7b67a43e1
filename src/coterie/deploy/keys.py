"""Certificates and keys of a deployment: who the server is, and which nodes it accepts.

The server proves itself to everybody with a certificate, which an authority of our own has signed:
nodes and users are given the authority's certificate (`ca.pem`) and trust nothing else. A node
proves itself to the server with a key pair of its own; the server is given the public half.

`make_authority(folder, hosts)` writes

    ca.pem       certificate of the authority; goes to every node and user
    ca.key       key of the authority; can sign further certificates, stays in a safe place
    server.pem   certificate of the server, for the names and addresses in `hosts`
    server.key   key of the server; stays on the server

and `make_node_key(folder, name)` writes

    NAME         private key of a node (OpenSSH, ECDSA on P-384); stays on the node
    NAME.pub     its public half, which is registered with the server
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.flwr_internals import key_fingerprint, need_flower
from coterie.files import write_atomically, write_bytes

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_NAME = "coterie authority"
AUTHORITY_DAYS = 3652  # ten years
WARN_DAYS = 60  # before a certificate expires
SERVER_DAYS = 825  # the longest that some systems accept of a server
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")  # in every server's certificate
CLOCK_SKEW = timedelta(hours=1)  # clocks of nodes may be behind ours
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


class Authority:
    """Where the certificates and keys of a deployment are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.pem"  # of the authority; nodes and users need it
        self.key = folder / "ca.key"  # of the authority; nobody needs it to run anything
        self.server_certificate = folder / "server.pem"
        self.server_key = folder / "server.key"


class NodeKey(NamedTuple):
    """Where the two halves of a node's key are."""

    private: Path
    public: Path


def make_authority(folder: Path, hosts: Iterable[str] = ()) -> Authority:
    """Make an authority and a server certificate that holds for `hosts` and for this machine.

    `hosts` are names or IP addresses under which nodes reach the server. Nothing is overwritten.
    """
    need_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

    names = [alternative_name(host) for host in dict.fromkeys([*LOCAL_HOSTS, *hosts])]
    made = Authority(folder)
    prepare_folder(folder, made.certificate, made.key, made.server_certificate, made.server_key)
    ca_key, key = make_key(), make_key()
    ca_public, public = ca_key.public_key(), key.public_key()
    ca_extensions = [
        x509.BasicConstraints(ca=True, path_length=0),
        key_usage("key_cert_sign", "crl_sign"),
        x509.SubjectKeyIdentifier.from_public_key(ca_public),
    ]
    ca = sign_certificate(AUTHORITY_NAME, ca_public, AUTHORITY_DAYS, ca_extensions, ca_key)
    server = sign_server(public, x509.SubjectAlternativeName(names), ca_key)
    write_secret(made.key, private_bytes(ca_key, PrivateFormat.PKCS8))
    write_bytes(made.certificate, ca.public_bytes(Encoding.PEM))
    write_secret(made.server_key, private_bytes(key, PrivateFormat.PKCS8))
    write_bytes(made.server_certificate, server.public_bytes(Encoding.PEM))
    return made


def sign_server(
    public: ec.EllipticCurvePublicKey,
    names: x509.SubjectAlternativeName,
    authority: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A certificate for the server, which the authority signs."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = [
        x509.BasicConstraints(ca=False, path_length=None),
        key_usage("digital_signature"),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        names,
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
    ]
    return sign_certificate("coterie server", public, SERVER_DAYS, extensions, authority)


def renew_server(folder: Path) -> Authority:
    """Replace the server's certificate by one that holds anew, for the same hosts and key.

    The authority stays, and with it the `ca.pem` of every node.
    """
    need_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    made = Authority(folder)
    for path in (made.key, made.certificate, made.server_certificate, made.server_key):
        if not path.is_file():
            raise SettingError(f"there is no file {path}, which a renewal needs")
    try:
        before = x509.load_pem_x509_certificate(made.server_certificate.read_bytes())
        names = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        ca_key: Any = load_pem_private_key(made.key.read_bytes(), None)
        key: Any = load_pem_private_key(made.server_key.read_bytes(), None)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CoterieError(f"the keys in {folder} cannot be read: {error}") from error
    server = sign_server(key.public_key(), names, ca_key)
    write_bytes(made.server_certificate, server.public_bytes(Encoding.PEM))
    return made


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make the key pair of a node, in the files `folder/name` and `folder/name.pub`."""
    need_flower()
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

    if not NAME.fullmatch(name) or name.endswith(".pub"):
        raise SettingError(
            "the name of a node must be letters, digits, dots, dashes and underscores, begin with "
            f"a letter or digit and not end in .pub, got {name!r}"
        )
    made = NodeKey(folder / name, folder / f"{name}.pub")
    prepare_folder(folder, *made)
    key = make_key()
    write_secret(made.private, private_bytes(key, PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_bytes(made.public, public + f" {name}\n".encode())
    return made


def read_fingerprint(word: str) -> str:
    """The fingerprint of a public key by its file, or as it stands."""
    need_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if word.startswith("SHA256:"):
        return word
    try:
        return key_fingerprint(load_ssh_public_key(Path(word).read_bytes()))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"a key must be a .pub file or a fingerprint, as in SHA256:..., got {word}"
        ) from error


def alternative_name(host: str) -> x509.GeneralName:
    """A host as certificates name it: an IP address or a DNS name (`*.` in front is allowed)."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if len(host) > 253 or not all(LABEL.fullmatch(label) for label in labels):
        raise SettingError(
            f"a host must be a name or an IP address without scheme or port, got {host!r}"
        )
    if all(label.isdigit() for label in labels):
        raise SettingError(f"a host must be a name or an IP address, got {host!r}")
    return x509.DNSName(host)


def make_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def private_bytes(key: ec.EllipticCurvePrivateKey, form: Any) -> bytes:
    """What the file of a private key holds."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def sign_certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    days: int,
    extensions: Iterable[x509.ExtensionType],
    authority: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A certificate that the authority signs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    begin = datetime.now(UTC) - CLOCK_SKEW
    owner, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in (subject, AUTHORITY_NAME)
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA384())


def key_usage(*uses: str) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(**{name: name in uses for name in KEY_USES})


def prepare_folder(folder: Path, *files: Path) -> None:
    """Make a folder that only its owner can look into, for new files.

    An existing folder keeps its mode, and an existing file is never overwritten.
    """
    for path in files:
        if os.path.lexists(path):
            raise CoterieError(
                f"{path} exists already and keys are never overwritten; "
                "remove it or take another folder"
            )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CoterieError(f"cannot make the folder {folder}: {error.strerror}") from error


def write_secret(path: Path, contents: bytes) -> None:
    """Write a file that was never readable by anybody else, not even while it was written."""

    def write(unfinished: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(contents)

    write_atomically(path, write)


def days_left(certificate: Path) -> float:
    """For how many days a certificate still holds; negative if it has expired."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return (found.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


class ExpiryWarning:
    """Says once a day that the certificates of a server are to be renewed, when it is time."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.said_at = -math.inf

    def warn(self, show: Callable[[str], object]) -> None:
        """Say so, if it is time and has not been said today; to be called often."""
        if time.monotonic() - self.said_at < 86_400:
            return
        self.said_at = time.monotonic()
        for path in (self.authority.server_certificate, self.authority.certificate):
            days = days_left(path)
            if days < WARN_DAYS:
                ends = f"expires in {days:.0f} days" if days >= 0 else "has expired"
                renew = (
                    f"`coterie deploy keys {path.parent} --renew` makes another"
                    if path == self.authority.server_certificate
                    else "make a new authority and give every node its ca.pem"
                )
                show(f"warning: the certificate {path} {ends}; {renew}")
