"""Who may ask a server: token, cookie, Host, Origin, limits of bodies, names of files."""

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from monge.core.errors import UsageError
from monge.serve.security import Access, Guard, check_name, make_token, read_token, resolve_below

TOKEN = make_token()
BEARER = {"authorization": f"Bearer {TOKEN}"}


async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({"size": len(body), "path": request.url.path})


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


def guard(**changes) -> Guard:
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/health", page),
            Route("/echo", echo, methods=["POST"]),
        ]
    )
    return Guard(app, Access.at(None, 8000, TOKEN, public=frozenset({"/health"}), **changes))


def client(**changes) -> TestClient:
    return TestClient(guard(**changes), base_url="http://127.0.0.1:8000")


@pytest.fixture
def web():
    return client()


def signed_in() -> TestClient:
    found = client()
    found.get("/", params={"token": TOKEN})
    return found


def test_nothing_is_answered_without_the_token(web):
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"monge-8000={TOKEN}"},
        {"cookie": "monge-8000="},
    ):
        for answer in (web.get("/", headers=headers), web.post("/echo", headers=headers)):
            assert answer.status_code == 401
            assert set(answer.json()) == {"error"}
            assert TOKEN not in answer.text
    assert web.get("/", params={"token": "wrong"}).status_code == 401
    assert web.get("/missing").status_code == 401  # what is there is not told either


def test_a_public_path_needs_no_token_but_a_name_of_this_machine(web):
    assert web.get("/health").status_code == 200
    assert web.get("/health", headers={"host": "evil.example"}).status_code == 403
    assert web.get("/health/../").status_code == 401


def test_a_program_sends_the_token(web):
    assert web.get("/", headers=BEARER).text == "page"
    assert web.post("/echo", headers=BEARER, content=b"abc").json()["size"] == 3


def test_the_token_in_an_address_becomes_a_cookie(web):
    answer = web.get("/?a=1&token=" + TOKEN + "&b=2", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?a=1&b=2"
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert web.get("/").text == "page"


def test_an_address_with_a_token_never_leads_to_another_site(web):
    for path in ("//evil.example/", "/\\evil.example", "///evil.example/%2f"):
        answer = web.get(f"http://127.0.0.1:8000{path}?token={TOKEN}", follow_redirects=False)
        assert answer.headers["location"].startswith("/")
        assert answer.headers["location"][1:2] not in ("/", "\\")


def test_the_token_in_an_address_counts_for_pages_only(web):
    answer = web.post(f"/echo?token={TOKEN}", headers={"origin": "http://127.0.0.1:8000"})
    assert answer.status_code == 401


def test_the_cookie_of_one_port_does_not_open_another():
    other = TestClient(
        Guard(guard().app, Access.at(None, 8001, make_token())), base_url="http://127.0.0.1:8001"
    )
    cookie = signed_in().cookies["monge-8000"]
    for name in ("monge-8000", "monge-8001"):
        assert other.get("/", headers={"cookie": f"{name}={cookie}"}).status_code == 401


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:99"])
def test_names_of_this_machine_are_accepted(web, host):
    assert web.get("/", headers={**BEARER, "host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost/evil",
        "localhost:port",
        "[::1",
        "0.0.0.0",
        "",
    ],
)
def test_other_names_are_refused_even_with_the_token(web, host):
    assert web.get("/", headers={**BEARER, "host": host}).status_code == 403


def test_a_host_that_is_given_is_accepted_and_others_are_not():
    access = Access.at("192.0.2.7", 8000, TOKEN)
    assert access.names >= {"192.0.2.7", "localhost"}
    assert not access.any_name
    assert Access.at("0.0.0.0", 8000, TOKEN).any_name


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "http://localhost:8000"},
        {"origin": "file://127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {},  # a browser always says where a request comes from
    ],
)
def test_other_sites_change_nothing(headers):
    assert signed_in().post("/echo", headers=headers).status_code == 403


def test_own_pages_change_things():
    for headers in ({"origin": "http://127.0.0.1:8000"}, {"sec-fetch-site": "same-origin"}):
        assert signed_in().post("/echo", headers=headers).status_code == 200


def test_other_sites_embed_nothing_but_may_link():
    web = signed_in()
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert web.get("/", headers=embedded).status_code == 403
    framed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert web.get("/", headers={**framed, "sec-fetch-dest": "iframe"}).status_code == 403
    assert web.get("/", headers={**framed, "sec-fetch-dest": "document"}).status_code == 200


def test_every_answer_has_the_headers_of_security_and_no_cors(web):
    for answer in (web.get("/", headers=BEARER), web.get("/"), web.options("/", headers=BEARER)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_body_is_bounded_by_what_it_declares_and_by_what_arrives(monkeypatch):
    monkeypatch.setattr("monge.serve.security.MAX_BODY", 1000)
    web = client()
    assert web.post("/echo", headers=BEARER, content=b"x" * 1000).json()["size"] == 1000
    assert web.post("/echo", headers=BEARER, content=b"x" * 1001).status_code == 413
    several = (b"x" * 400 for _ in range(3))
    answer = web.post("/echo", headers=BEARER, content=several)  # without content-length
    assert answer.status_code == 413
    assert set(answer.json()) == {"error"}


def test_limits_differ_by_path():
    web = client(body_limits={"/echo": 10})
    assert web.post("/echo", headers=BEARER, content=b"x" * 11).status_code == 413


def test_a_body_must_arrive_in_time():
    sent = []

    async def ask() -> None:
        async def receive():
            await asyncio.sleep(10)

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/echo", "headers": headers}
        scope |= {"query_string": b"", "raw_path": b"/echo", "root_path": "", "app": None}
        await guard(body_seconds=0.05)(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 408
    assert set(json.loads(sent[1]["body"])) == {"error"}
    assert len(sent) == 2


def test_a_header_that_decides_is_not_repeated(web):
    answer = web.get("/", headers=[("authorization", f"Bearer {TOKEN}")] * 2)
    assert answer.status_code == 400


def test_a_token_file_is_made_once_for_the_owner_alone(tmp_path):
    path = tmp_path / "token"
    token = read_token(path)
    assert len(token) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token


@pytest.mark.parametrize("text", ["short", "two words in the file", "\n\n", "x" * 15])
def test_a_token_that_is_no_secret_is_refused(tmp_path, text):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(UsageError, match="token"):
        read_token(path)


def test_a_token_file_that_others_read_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text(make_token())
    path.chmod(0o644)
    with pytest.raises(UsageError, match="644"):
        read_token(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(UsageError, match="link"):
        read_token(tmp_path / "link")
    with pytest.raises(UsageError):
        read_token(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", ".lock", "a/b", "a\\b", "/etc/passwd", "a\0b", "C:x", "<script>", "x\n"],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(UsageError):
        check_name(name)
    with pytest.raises(UsageError):
        resolve_below(tmp_path, name)


@pytest.mark.parametrize("name", ["%2e%2e", "..%2f", "\uff0e\uff0e", "\u2025", "a b", "née"])
def test_names_are_taken_as_they_are(tmp_path, name):
    if name[0] != ".":
        assert check_name(name) == name
    with pytest.raises(UsageError):  # there is no such file
        resolve_below(tmp_path, name)


def test_a_link_out_of_the_root_is_refused(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "file").write_text("x")
    (root / "inner").symlink_to(root / "file")
    (root / "out").symlink_to(outside)
    (root / "gone").symlink_to(tmp_path / "nothing")
    assert resolve_below(root, "inner").read_text() == "x"
    assert resolve_below([outside, root], "file").read_text() == "x"
    for names in (("out",), ("out", "secret"), ("gone",)):
        with pytest.raises(UsageError):
            resolve_below(root, *names)
