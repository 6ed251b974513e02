"""A private certificate authority: for a cluster (`hfdt certs`), or for one run.

Keys are ECDSA P-256, certificates X.509 v3, made by the `cryptography` package.
"""

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SLACK = datetime.timedelta(days=1)  # the hosts' clocks may differ


class Authority:
    """A certificate authority whose certificates are valid for `valid` from now on.

    Attributes:
        certificate: Its own certificate, PEM text.
        key: Its private key, PEM text.
    """

    def __init__(self, name: str, valid: datetime.timedelta) -> None:
        self._name, self._valid = _named(name), valid
        self._key = ec.generate_private_key(ec.SECP256R1())
        extensions = [x509.BasicConstraints(ca=True, path_length=0), _usage(signs_certificates=True)]
        self.certificate = _pem(_certificate(self._name, self._key, self._name, self._key, valid, extensions))
        self.key = _key_pem(self._key)

    @classmethod
    def load(cls, certificate: str, key: str, valid: datetime.timedelta) -> "Authority":
        """Return an authority that was made before. Raises ValueError for PEM texts that are none."""
        self, loaded = cls.__new__(cls), serialization.load_pem_private_key(key.encode(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the key must be one of an elliptic curve")
        self.certificate, self.key, self._key, self._valid = certificate, key, loaded, valid
        self._name = x509.load_pem_x509_certificate(certificate.encode()).subject
        return self

    def sign(self, names: Sequence[str]) -> tuple[str, str]:
        """Return a certificate for host names and IP addresses, for both ends of a call, and its key: PEM texts."""
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._signed(names[0], both, x509.SubjectAlternativeName([_general(name) for name in names]))

    def sign_user(self, user: str) -> tuple[str, str]:
        """Return a certificate whose common name is a user's, for calls and for no server, and its key: PEM texts."""
        return self._signed(user, [ExtendedKeyUsageOID.CLIENT_AUTH])

    def _signed(
        self, name: str, purposes: Sequence[x509.ObjectIdentifier], *more: x509.ExtensionType
    ) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions = [
            *more,
            x509.BasicConstraints(ca=False, path_length=None),
            x509.ExtendedKeyUsage(purposes),
            _usage(signs_certificates=False),
        ]
        made = _certificate(_named(name), key, self._name, self._key, self._valid, extensions)
        return _pem(made), _key_pem(key)


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid: datetime.timedelta,
    extensions: Sequence[x509.ExtensionType],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
