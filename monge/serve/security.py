"""Who may ask: a token, its cookie, the Host and Origin of a request, and limits on its body.

A loopback address is no boundary: every page that a browser shows can send requests to it. So each
server has a random token. A program sends it as `Authorization: Bearer TOKEN`; a person opens
`/?token=TOKEN` once, which is exchanged for a cookie that scripts cannot read and other sites
cannot send. The names in Host are limited, so that a foreign name that resolves to this machine
(DNS rebinding) is refused, and a request that changes something must come from this very origin.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import UsageError, shown

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine in a Host header."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
SHORTEST_TOKEN = 16
"""Fewest characters of a token that someone chooses."""
MAX_BODY = 16 << 20
"""Default limit on the bytes of a body."""
BODY_SECONDS = 30.0
"""Seconds in which a body must arrive."""
COOKIE_SECONDS = 30 * 24 * 3600
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer, unless the answer sets them itself; inline script and style are not
allowed, and there is no CORS."""


def make_token() -> str:
    """A new random token of 256 bits."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """The token in a file that nobody else may read; a file that is not there is made, with a new
    token."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise UsageError(
            f"--token-file: cannot open {path} ({error.strerror}); name a file that you may "
            "read, or a new one"
        ) from error
    with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
        about = os.fstat(file.fileno())
        if os.name == "posix" and stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
            raise UsageError(
                f"--token-file: expected a file that only you can read, found {path} with mode "
                f"{stat.S_IMODE(about.st_mode):o}; run `chmod 600 {path}`"
            )
        token = file.read(4096).strip()
        if not token and not about.st_size:
            token = make_token()
            file.write(f"{token}\n")
    if len(token) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in token):
        raise UsageError(
            f"--token-file: expected one line of at least {SHORTEST_TOKEN} letters, digits and "
            f"signs, found {len(token)} characters in {path}; delete the file to get a new token"
        )
    return token


@dataclass(frozen=True)
class Access:
    """Who may ask one server."""

    token: str
    port: int
    names: frozenset[str] = LOOPBACK  # host names that a request may use
    any_name: bool = False  # the server listens on all addresses: any name is accepted
    public: frozenset[str] = frozenset()  # paths that need no token
    body_limits: Mapping[str, int] = field(default_factory=dict)  # by the beginning of a path
    body_seconds: float = BODY_SECONDS

    @classmethod
    def at(cls, host: str | None, port: int, token: str, **rest: Any) -> Access:
        """Access to a server that listens on `host`; by default on loopback, where only names of
        loopback are accepted."""
        if host is None or is_loopback(host):
            return cls(token, port, LOOPBACK | ({host.lower()} if host else set()), **rest)
        names = frozenset({*LOOPBACK, host.lower()})
        return cls(token, port, names, any_name=is_every_address(host), **rest)

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers send cookies to every port of a host."""
        return f"monge-{self.port}"

    @property
    def cookie_value(self) -> str:
        """Derived from the token, which the cookie does not hold."""
        return hmac.new(self.token.encode(), b"monge cookie", hashlib.sha256).hexdigest()

    def address(self, host: str | None = None) -> str:
        """The address that a person opens."""
        name = "127.0.0.1" if host is None or is_every_address(host) else host
        shown_name = f"[{name}]" if ":" in name else name
        return f"http://{shown_name}:{self.port}/?token={self.token}"

    def body_limit(self, path: str) -> int:
        known = [limit for start, limit in self.body_limits.items() if path.startswith(start)]
        return max(known, default=MAX_BODY)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_every_address(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def equal(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


class Refused(Exception):
    """A request that is not answered, with the status and one sentence."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


class Guard:
    """ASGI middleware: refuses requests that `access` does not allow, bounds their bodies, and
    adds the headers of security to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = Answer(send)
        try:
            headers = read_headers(scope)
            location = self.admit(scope, headers)
            if location is not None:
                await answer.redirect(location, self.set_cookie())
                return
            limit = self.access.body_limit(scope["path"])
            body = Body(receive, answer, limit, self.access.body_seconds)
            body.check_declared(headers)
            await self.app(scope, body, answer)
        except Refused as error:
            await answer.refuse(error)

    def admit(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Raise Refused, or return where to redirect after a token was exchanged for a cookie."""
        method, path = scope["method"], scope["path"]
        name, port = read_host(headers.get("host", ""))
        if not self.access.any_name and name not in self.access.names:
            raise Refused(
                403,
                f"expected a request to {' or '.join(sorted(self.access.names))}, found the Host "
                f"{shown(headers.get('host', ''))}; use the address that was printed",
            )
        check_origin(method, headers, name, port)
        if path in self.access.public:
            return None
        bearer = headers.get("authorization", "")
        if bearer:
            kind, _, token = bearer.partition(" ")
            if kind.lower() == "bearer" and equal(token.strip(), self.access.token):
                return None
            raise self.unknown()
        if method in SAFE:
            pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), True)
            tokens = [value for key, value in pairs if key == "token"]
            if tokens:
                if len(tokens) > 1 or not equal(tokens[0], self.access.token):
                    raise self.unknown()
                rest = urlencode([pair for pair in pairs if pair[0] != "token"])
                where = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
                return f"{where}?{rest}" if rest else where
        cookie = read_cookie(headers.get("cookie", ""), self.access.cookie)
        if equal(cookie, self.access.cookie_value):
            if method not in SAFE and not {"origin", "sec-fetch-site"} & set(headers):
                raise Refused(
                    403,
                    "expected the Origin of a request that changes something, found none; "
                    "programs send `Authorization: Bearer TOKEN` instead of the cookie",
                )
            return None
        raise self.unknown()

    def set_cookie(self) -> str:
        return (
            f"{self.access.cookie}={self.access.cookie_value}; Path=/; HttpOnly; SameSite=Strict; "
            f"Max-Age={COOKIE_SECONDS}"
        )

    @staticmethod
    def unknown() -> Refused:
        return Refused(
            401,
            "expected the token of this server, found none or another; open the address that was "
            "printed, or send `Authorization: Bearer TOKEN`",
            **{"www-authenticate": "Bearer"},
        )


def read_headers(scope: Scope) -> dict[str, str]:
    """The headers of a request; those that decide who asks must not be repeated."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = key.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-length"):
            raise Refused(400, f"expected one header {name}, found two; send one")
        joined = f"{found[name]}; " if name == "cookie" and name in found else ""
        found[name] = joined + value.decode("latin-1")
    return found


def read_host(text: str) -> tuple[str, str]:
    """The name and port of a Host header; the name is empty if it cannot be read."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        return "", ""
    if parts.netloc != text or "@" in text or not parts.hostname:
        return "", ""
    return parts.hostname.lower(), "" if port is None else str(port)


def check_origin(method: str, headers: Mapping[str, str], name: str, port: str) -> None:
    """Refuse what the page of another site sends, and what it embeds."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    foreign = Refused(
        403,
        f"expected a request of this server's own pages, found one from "
        f"{shown(origin or site or '')}; requests of other sites are refused",
    )
    if site is not None and site not in ("same-origin", "none"):
        navigates = headers.get("sec-fetch-mode") == "navigate" and method in ("GET", "HEAD")
        if not navigates or headers.get("sec-fetch-dest", "document") != "document":
            raise foreign
    if origin is not None:
        scheme, _, rest = origin.partition("://")
        if scheme not in ("http", "https") or read_host(rest) != (name, port):
            raise foreign


def read_cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


class Answer:
    """The answer to a request, with the headers of security."""

    def __init__(self, send: Send) -> None:
        self.send, self.started = send, False
        self.refused: Refused | None = None  # set while the body is read

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.refused is not None:
                await self.refuse(self.refused)
                return
            self.started = True
            there = {key.lower() for key, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
            added = [(key, value) for key, value in extra if key not in there]
            message = {**message, "headers": [*message["headers"], *added]}
        elif self.refused is not None:
            return  # the sentence was sent instead
        await self.send(message)

    async def refuse(self, error: Refused) -> None:
        if self.started:
            return
        self.refused = None
        body = json.dumps({"error": error.sentence}).encode()
        headers = {"content-type": "application/json", **error.headers}
        await self.whole(error.status, headers, body)
        self.refused = error

    async def redirect(self, location: str, cookie: str) -> None:
        await self.whole(303, {"location": location, "set-cookie": cookie}, b"")

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        pairs = [(k.encode("latin-1", "replace"), v.encode("latin-1")) for k, v in headers.items()]
        length = (b"content-length", str(len(body)).encode())
        await self({"type": "http.response.start", "status": status, "headers": [*pairs, length]})
        await self({"type": "http.response.body", "body": body})


class Body:
    """Receives the body of a request, up to a limit of bytes and of time."""

    def __init__(self, receive: Receive, answer: Answer, limit: int, seconds: float) -> None:
        self.receive, self.answer, self.limit = receive, answer, limit
        self.seconds, self.end = seconds, time.monotonic() + seconds
        self.size, self.whole = 0, False

    def check_declared(self, headers: Mapping[str, str]) -> None:
        text = headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit()):
            raise Refused(400, f"expected a number as content-length, found {shown(text)}")
        if int(text[:20]) > self.limit:
            raise self.too_large()

    def too_large(self) -> Refused:
        return Refused(
            413,
            f"expected a body of at most {self.limit} bytes, found more; send less at once",
            connection="close",
        )

    def fail(self, error: Refused) -> HTTPException:
        """Send the sentence whatever the application makes of the exception."""
        self.answer.refused = error
        return HTTPException(error.status, error.sentence)

    async def __call__(self) -> Message:
        if self.whole:  # waits for the client to leave
            return await self.receive()
        try:
            async with asyncio.timeout(max(self.end - time.monotonic(), 0)):
                message = await self.receive()
        except TimeoutError:
            slow = Refused(
                408,
                f"expected the whole body within {self.seconds:g} seconds, found a part; send it "
                "faster",
                connection="close",
            )
            raise self.fail(slow) from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.size > self.limit:
                raise self.fail(self.too_large())
        return message


def resolve_below(roots: Path | Iterable[Path], *names: str) -> Path:
    """The path of names below one of the roots, where it is there; UsageError for a name that
    leads elsewhere: `..`, a separator, a link out."""
    places = [roots] if isinstance(roots, Path) else list(roots)
    for name in names:
        check_name(name)
    for root in places:
        inside = Path(os.path.realpath(root))
        path = inside.joinpath(*names)
        if os.path.lexists(path) and Path(os.path.realpath(path)).is_relative_to(inside):
            return path
    wanted = "/".join(names)
    raise UsageError(
        f"expected a file or folder below {' or '.join(map(str, places))}, found {wanted!r}; "
        "choose one that is there"
    )


def check_name(name: str) -> str:
    """One part of a path: no separator, no `..`, no hidden file."""
    plain = (
        0 < len(name.encode("utf-8", "surrogatepass")) < 256
        and name[0] != "."
        and not any(letter in '/\\:*?"<>|' or ord(letter) < 32 for letter in name)
        and "\x7f" not in name
    )
    if not plain:
        raise UsageError(f"expected the name of a file or folder, found {shown(name)}; use a name")
    return name
