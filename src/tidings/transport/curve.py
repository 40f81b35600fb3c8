"""Who may talk to a broker: CURVE keys in a folder, and the handler that checks them.

A folder made by `tidings keys` holds

    server.key         the broker's secret key, readable by its owner only
    server.pub         the broker's public key, which every client needs
    NAME.key           a client's secret key, readable by its owner only
    clients/NAME.pub   the public keys that may connect: the allow-list

Each file is one line: a key of 32 bytes as 40 characters of Z85 (ZeroMQ RFC 32). Only the secret is in a
`.key` file, since the public key follows from it. NAME is the client's name with everything but letters,
digits and `_.-~` written as %XX, so that no name can leave the folder. A broker needs server.key and
clients/; a client needs its own NAME.key and server.pub, and nothing else should be copied to it.

CURVE by itself encrypts, and lets every key in. What keeps strangers out is ZAP (ZeroMQ RFC 27): libzmq
asks a handler at a fixed inproc address about each connection. `Authenticator` is this handler: it answers
with the name under which the key is on the allow-list, and libzmq attaches that name to every frame of the
connection (`sender`). `configure_server` also makes libzmq refuse everybody when no handler answers.

The allow-list is read again when its folder has changed. A key that is taken off cannot connect
any more; a connection that is open stays open until it ends.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

import zmq
from zmq.utils import z85

from tidings.descriptors import USED_UP, spare
from tidings.errors import InvalidRequest, TidingsError, Unauthorized

DOMAIN = b"tidings"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
KEY_LENGTH = 40
SERVER = "server"
FILE_NAME_BYTES_MAX = 200
RECENT_NS = 2_000_000_000
"""A folder changed so recently may change again without its time of change showing it."""

_log = logging.getLogger("tidings.transport.curve")


class KeyPair(NamedTuple):
    """A public and a secret key, as Z85. Its text shows only the public one."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, secret hidden)"


class ClientOptions(NamedTuple):
    """What a client's socket needs to know before it connects. Its text shows no secret."""

    keys: KeyPair
    server_public: bytes

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Makes the socket speak CURVE; call it before connect."""
        socket.curve_secretkey = self.keys.secret
        socket.curve_publickey = self.keys.public
        socket.curve_serverkey = self.server_public


def libzmq() -> tuple[str, bool]:
    """The version of libzmq, and whether it can do CURVE."""
    return zmq.zmq_version(), bool(zmq.has("curve"))


def generate() -> KeyPair:
    """A new key pair from the operating system's randomness.

    Its public key begins with a letter or digit: one that began with `-` would look like a flag to every command.
    """
    _require_curve()
    while not (pair := KeyPair(*zmq.curve_keypair())).public[:1].isalnum():
        pass
    return pair


def create_server_keys(folder: Path) -> bytes:
    """Makes the broker's key pair in the folder and returns the public key. Never overwrites one."""
    secret_file, public_file = folder / "server.key", folder / "server.pub"
    _refuse_existing(secret_file, public_file)
    pair = generate()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "clients").mkdir(mode=0o755, exist_ok=True)
    _create(secret_file, pair.secret, 0o600)
    _create(public_file, pair.public, 0o644)
    return pair.public


def create_client_keys(folder: Path, name: str) -> bytes:
    """Makes a client's key pair in the folder, puts it on the allow-list and returns the public key."""
    path = secret_file(folder, name)
    _refuse_existing(path, _public_file(folder, name))
    pair = generate()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(path, pair.secret, 0o600)
    allow(folder, name, pair.public)
    return pair.public


def allow(folder: Path, name: str, public: bytes) -> None:
    """Puts a public key that was made elsewhere on the folder's allow-list under a name."""
    _check_key(public, f"The public key for {name!r}")
    for known, other in allowed(folder).items():
        if known == public:
            raise InvalidRequest(
                f"This key is on the allow-list as {other!r} already: make a key pair for each client."
            )
    (folder / "clients").mkdir(mode=0o755, parents=True, exist_ok=True)
    _create(_public_file(folder, name), public, 0o644)


def allowed(folder: Path) -> dict[bytes, str]:
    """The folder's allow-list: the name for each public key."""
    found, complaints = _read_clients(folder)
    if complaints:
        raise InvalidRequest(complaints[0])
    return found


def server_keys(folder: Path) -> KeyPair:
    """The broker's key pair."""
    return _load_pair(folder / "server.key", f"make it with: tidings keys {folder}")


def client_options(folder: Path, name: str, server_key: str | None = None) -> ClientOptions:
    """What a client of that name needs: its keys from the folder, and the broker's public key.

    `server_key` is that key itself or a file that holds it; without it `server.pub` of the folder is read.
    """
    pair = _load_pair(secret_file(folder, name), f"make it with: tidings keys {folder} --client NAME")
    if server_key is None:
        return ClientOptions(pair, _read_key(folder / "server.pub", "copy it from the broker or give --server-key"))
    return ClientOptions(pair, public_key(server_key))


def secret_file(folder: Path, name: str) -> Path:
    """Where a client's secret key is kept."""
    return folder / f"{_file_name(name)}.key"


def public_key(text: str) -> bytes:
    """A public key that is given as it stands, or as the file that holds it."""
    given = text.strip().encode()
    return given if _is_key(given) else _read_key(Path(text), "give the public key itself, or the file that holds it")


def configure_server(socket: zmq.Socket[bytes], folder: Path) -> None:
    """Makes a socket the CURVE server of the folder's key; call it before bind.

    Every connection is put before the `Authenticator` of the socket's context, and refused if there is none.
    """
    pair = server_keys(folder)
    socket.curve_server = True
    socket.curve_secretkey = pair.secret
    socket.curve_publickey = pair.public
    socket.zap_domain = DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def sender(frame: zmq.Frame) -> str | None:
    """The name of the client whose connection brought the frame; None when the connection has no keys."""
    try:
        name = frame.get("User-Id")
    except zmq.ZMQError:
        return None
    return unquote(str(name)) or None


class AllowList:
    """The public keys that may connect, read again from the folder whenever it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = 0
        self._names: dict[bytes, str] = allowed(folder)

    def name_of(self, public: bytes) -> str | None:
        """The name under which a public key is allowed, or None."""
        self._refresh()
        return self._names.get(public)

    def _refresh(self) -> None:
        try:
            changed_ns = (self._folder / "clients").stat().st_mtime_ns
        except OSError:
            self._names, self._changed_ns = {}, 0  # Without a list nobody is on it.
            return
        if changed_ns == self._changed_ns:
            return
        try:
            with spare():
                self._names, complaints = _read_clients(self._folder)
        except (
            OSError
        ) as error:  # Too many connections are open: anyone who was on the list stays there until it is read.
            _log.warning("The allow-list in %s cannot be read now (%s).", self._folder, error.strerror)
            return
        for complaint in complaints:  # A file that is no key lets nobody in, and keeps nobody else out.
            _log.warning("%s", complaint)
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > RECENT_NS else 0


class Authenticator:
    """The ZAP handler of a context: lets in anyone who is on the folder's allow-list, under the name found there.

    It runs in a thread of its own, because libzmq waits for its answer while the broker's loop may be busy.
    Start it before the first bind of the context, and close it before the context is ended.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        self._list = AllowList(folder)
        control = f"inproc://tidings.zap.control.{id(self):x}"
        self._control = context.socket(zmq.PAIR)
        self._stopped = context.socket(zmq.PAIR)
        self._door = context.socket(zmq.REP)
        self._closed = False
        try:
            self._control.bind(control)
            self._stopped.connect(control)
            self._door.linger = 0
            self._door.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise InvalidRequest(
                "This ZeroMQ context has an authenticator already: give each broker its own."
            ) from error
        self._thread = threading.Thread(target=self._run, name="tidings-zap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. After this libzmq refuses every new connection to a socket with keys."""
        if not self._closed:
            self._closed = True
            self._control.send(b"")
            self._thread.join()
            self._close_sockets()

    def __enter__(self) -> Authenticator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _close_sockets(self) -> None:
        for socket in (self._control, self._stopped, self._door):
            socket.close(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopped in ready:
                return
            self._door.send_multipart(self._answer(self._door.recv_multipart()))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """RFC 27: version, request, domain, address, identity, mechanism, credentials in; a status out."""
        number = request[1] if len(request) > 1 else b""
        if len(request) != 7 or request[0] != ZAP_VERSION or request[2] != DOMAIN or request[5] != b"CURVE":
            return [ZAP_VERSION, number, b"400", b"Only CURVE is spoken here", b"", b""]
        name = self._list.name_of(z85.encode(request[6]))
        if name is None:
            return [ZAP_VERSION, number, b"400", b"This key is not on the allow-list", b"", b""]
        # Frame metadata must be plain text without NUL, so the name travels as it stands in the file's name.
        return [ZAP_VERSION, number, b"200", b"OK", _file_name(name).encode(), b""]


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("tcp://127.0.0.1:7400"), is_loopback("tcp://*:7400")
    (True, False)
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return False
    if scheme in ("ipc", "inproc"):
        return True
    if scheme != "tcp":
        return False
    host = rest.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False  # A name or an interface, and what it stands for may change.
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


def check_bind(address: str, keys: str | Path | None) -> None:
    """Raises InvalidRequest when other machines could reach the address and no keys guard it."""
    if keys is None and not is_loopback(address):
        raise InvalidRequest(
            f"Other machines can reach {address}, and without keys anybody there could read and write: "
            "make keys with `tidings keys DIR` and give --keys DIR, or bind tcp://127.0.0.1:PORT."
        )


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise TidingsError("This libzmq was built without CURVE: install the pyzmq wheel, which has it.")


def _file_name(name: str) -> str:
    encoded = quote(name, safe="")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if name == SERVER or not encoded or len(encoded) > FILE_NAME_BYTES_MAX:
        raise InvalidRequest(f"No key file can be named after the client {name!r}: choose another, shorter name.")
    return encoded


def _public_file(folder: Path, name: str) -> Path:
    return folder / "clients" / f"{_file_name(name)}.pub"


def _is_key(text: bytes) -> bool:
    try:
        return len(text) == KEY_LENGTH and len(z85.decode(text)) == 32
    except (KeyError, ValueError):
        return False


def _check_key(text: bytes, what: str) -> bytes:
    if not _is_key(text):
        raise InvalidRequest(f"{what} is not a CURVE key: it has {KEY_LENGTH} characters of Z85 on one line.")
    return text


def _read_key(path: Path, advice: str) -> bytes:
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError as error:
        raise InvalidRequest(f"There is no key file {path}: {advice}.") from error
    except OSError as error:
        if error.errno in USED_UP:
            raise
        raise InvalidRequest(f"The key file {path} cannot be read ({error.strerror}): {advice}.") from error
    return _check_key(text, f"The file {path}")


def _load_pair(path: Path, advice: str) -> KeyPair:
    _require_curve()
    secret = _read_key(path, advice)
    if path.stat().st_mode & 0o077:
        raise Unauthorized(f"Others on this machine may read {path}: run chmod 600 on it, or make new keys.")
    return KeyPair(zmq.curve_public(secret), secret)


def _read_clients(folder: Path) -> tuple[dict[bytes, str], list[str]]:
    found: dict[bytes, str] = {}
    complaints: list[str] = []
    for path in sorted((folder / "clients").glob("*.pub")):
        name = unquote(path.name.removesuffix(".pub"))
        try:
            key = _read_key(path, "remove it from the allow-list")
        except InvalidRequest as error:
            complaints.append(str(error))
            continue
        if key in found:
            complaints.append(f"{name!r} and {found[key]!r} have the same key in {path.parent}: remove one of the two.")
        else:
            found[key] = name
    return found, complaints


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise InvalidRequest(f"{path} is there already and is not overwritten: remove it first, or choose another.")


def _create(path: Path, key: bytes, mode: int) -> None:
    """Writes a key file in one step, so that nobody ever reads half a key, and never over another file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(descriptor, key + b"\n")
        os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        _refuse_existing(path)
        raise
    finally:
        os.close(descriptor)
        draft.unlink()
