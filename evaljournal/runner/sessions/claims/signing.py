"""Signatures of `ssh-keygen -Y`, which is wherever OpenSSH is: over the encoding of DSSE, in a namespace of our own.

An envelope has the signature without the lines that begin and end its text form. Keys stay with `ssh-keygen` and its agent: it
reads them, and asks for a passphrase in a terminal. Nothing in a file that is checked reaches a command line.
"""

import os
import re
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Final

from evaljournal.replay.claims.checking import Line
from evaljournal.replay.claims.statement import Statement, key_id, pre_authentication_encoding
from evaljournal.runner.errors import UsageError

NAMESPACE: Final = "claim@evaljournal"
"""A signature in another namespace, such as that of a commit, is none of a claim."""
_BEGIN: Final = "-----BEGIN SSH SIGNATURE-----\n"
_END: Final = "\n-----END SSH SIGNATURE-----\n"
_PUBLIC_KEY: Final = re.compile(r"\s*(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[\w@.-]+[ \t]+[A-Za-z0-9+/]+={0,2}(?=\s|$)")
_TIMEOUT: Final = 60
_MAX_KEYS: Final = 1 << 20


def _ssh_keygen(*arguments: object, data: bytes, timeout: float | None = None) -> "subprocess.CompletedProcess[bytes]":
    command = ["ssh-keygen", "-n", NAMESPACE, *map(str, arguments)]
    variables = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}  # No window; a passphrase is asked for in the terminal.
    try:
        return subprocess.run(command, input=data, capture_output=True, timeout=timeout, check=False, env=variables)  # noqa: S603  # the one on the path
    except FileNotFoundError as exc:
        raise UsageError("ssh-keygen is not installed", hint="install OpenSSH: apt-get install openssh-client") from exc


def sign(payload: bytes, key: Path) -> bytes:
    """Sign a statement with an SSH key.

    `key` is the file of a private key, or of a public one whose private key is in the agent or on a security key.
    """
    if not key.is_file():
        raise UsageError(f"there is no key {key}", hint="create one: ssh-keygen -t ed25519 -f FILE")
    result = _ssh_keygen("-Y", "sign", "-f", key, data=pre_authentication_encoding(payload))
    text, errors = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace").strip()
    if result.returncode == 0 and _BEGIN in text:
        return b64decode(text.partition(_BEGIN)[2].partition(_END)[0])
    hint = "pass an SSH key, such as ~/.ssh/id_ed25519"
    if "passphrase" in errors.lower():
        hint = "it is encrypted: run ssh-add and pass its public key, or sign in a terminal"
    raise UsageError(f"ssh-keygen cannot sign with {key}: {errors[-300:]}", hint=hint)


def read_public_keys(file: Path) -> list[str]:
    """Read the public keys in a file, one per line; raise a UsageError if it has none."""
    with file.open("rb") as stream:
        text = stream.read(_MAX_KEYS).decode(errors="replace")
    keys = [match[0].strip() for line in text.splitlines() if (match := _PUBLIC_KEY.match(line))]
    if not keys:
        hint = f"pass the public key, {file}.pub" if "PRIVATE KEY" in text else "expected a line such as: ssh-ed25519 AAAA…"
        raise UsageError(f"{file} has no public key", hint=hint)
    return keys


def check_signatures(statement: Statement, keys: Sequence[str] | None) -> Iterator[Line]:
    """Verify the signatures of a statement; with `keys`, one of them must have signed it."""
    data, signatures = pre_authentication_encoding(statement.payload), statement.signatures
    valid = [signature for signature in signatures if _is_valid(data, signature, keys)]
    if valid:
        yield Line("signature", "ok", f"by {', '.join(map(key_id, valid))}")
    if keys is not None and not valid:
        yield Line("signature", "failed", "no valid signature by a key of --key")
    if keys is None and len(valid) < len(signatures):
        yield Line("signature", "failed", f"{len(signatures) - len(valid)} of {len(signatures)} not of this statement")
    if keys is None:
        unknown = "whose key that is: pass the signer's public key with --key"
        yield Line("signature", "unchecked", unknown if signatures else "unsigned: anyone can have written the statement")


def _is_valid(data: bytes, signature: bytes, keys: Sequence[str] | None) -> bool:
    with TemporaryDirectory() as name:
        file, signers = Path(name, "signature"), Path(name, "signers")
        file.write_text(_BEGIN + "\n".join(wrap(b64encode(signature).decode(), 70)) + _END)
        signers.write_text("".join(f'signer namespaces="{NAMESPACE}" {key}\n' for key in keys or ()))
        action = ["check-novalidate"] if keys is None else ["verify", "-f", signers, "-I", "signer"]
        with suppress(subprocess.TimeoutExpired):
            return _ssh_keygen("-Y", *action, "-s", file, data=data, timeout=_TIMEOUT).returncode == 0
    return False
