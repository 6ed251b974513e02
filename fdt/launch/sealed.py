"""Words for a command on another host over a stream that others may read: `python -m fdt.launch.sealed COMMAND...`.

srun proves who sends, and encrypts nothing. So the host makes a key for this one message and says the public half; what
comes back only it can open, and gives to the command's stdin. X25519, HKDF and ChaCha20-Poly1305 of `cryptography`.
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
    """`text` for whoever said `public` (hexadecimal, as is the result). Raises ValueError for what is no key."""
    mine, theirs = X25519PrivateKey.generate(), X25519PublicKey.from_public_bytes(bytes.fromhex(public))
    return (_public(mine) + _cipher(mine, theirs, theirs).encrypt(NONCE, text.encode(), None)).hex()


def unseal(key: X25519PrivateKey, sealed: str) -> bytes:
    """Raises ValueError for what was not sealed for `key`."""
    data = bytes.fromhex(sealed)
    theirs = X25519PublicKey.from_public_bytes(data[:KEY_BYTES])
    try:
        return _cipher(key, theirs, key.public_key()).decrypt(NONCE, data[KEY_BYTES:], None)
    except InvalidTag:
        raise ValueError("sealed words must be for this key. Received: others") from None


def _cipher(mine: X25519PrivateKey, theirs: X25519PublicKey, receiver: X25519PublicKey) -> ChaCha20Poly1305:
    kdf = HKDF(SHA256(), KEY_BYTES, salt=receiver.public_bytes_raw(), info=b"fdt.launch.sealed")
    return ChaCha20Poly1305(kdf.derive(mine.exchange(theirs)))


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def main() -> int:
    key = X25519PrivateKey.generate()
    print(_public(key).hex(), flush=True)
    return subprocess.run(sys.argv[1:], input=unseal(key, sys.stdin.readline().strip()), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
