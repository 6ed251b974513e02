"""Encryption of a command's stdin over a stream that others can read: `python -m fdt.launch.sealed COMMAND...`.

srun authenticates the sender but encrypts nothing. So the host makes a key pair for this one message and prints the
public key. Only the host can decrypt the answer, and writes it to the command's stdin. X25519, HKDF and
ChaCha20-Poly1305 are the `cryptography` package's.
"""

import subprocess
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE = bytes(12)  # every key is for one message


def seal(public: str, text: str) -> str:
    """Encrypt `text` for the key `public` (hexadecimal, as is the result). Raises ValueError for an invalid key."""
    mine, theirs = X25519PrivateKey.generate(), X25519PublicKey.from_public_bytes(bytes.fromhex(public))
    return (_public(mine) + _cipher(mine, theirs, theirs).encrypt(NONCE, text.encode(), None)).hex()


def unseal(key: X25519PrivateKey, sealed: str) -> bytes:
    """Decrypt a text that was encrypted for `key`. Raises ValueError for any other text."""
    data = bytes.fromhex(sealed)
    theirs = X25519PublicKey.from_public_bytes(data[:KEY_BYTES])
    try:
        return _cipher(key, theirs, key.public_key()).decrypt(NONCE, data[KEY_BYTES:], None)
    except InvalidTag:
        raise ValueError("the sealed message is not for this key") from None


def _cipher(mine: X25519PrivateKey, theirs: X25519PublicKey, receiver: X25519PublicKey) -> ChaCha20Poly1305:
    kdf = HKDF(SHA256(), KEY_BYTES, salt=receiver.public_bytes_raw(), info=b"fdt.launch.sealed")
    return ChaCha20Poly1305(kdf.derive(mine.exchange(theirs)))


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def main() -> int:
    """Print a public key, run the command with the decrypted answer as its stdin, and return its exit code."""
    key = X25519PrivateKey.generate()
    print(_public(key).hex(), flush=True)
    return subprocess.run(sys.argv[1:], input=unseal(key, sys.stdin.readline().strip()), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
