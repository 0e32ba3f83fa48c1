"""The server of fitted models: its answers equal those of the command line, and it refuses what it
must."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pandas as pd
import pytest
import uvicorn
from starlette.testclient import TestClient

import monge
from monge.cli.main import attempt
from monge.core.errors import RunError, UsageError
from monge.run.run import load as load_run
from monge.run.storage import locked
from monge.serve import listening, server
from monge.serve.app import PUBLIC, make_app
from monge.serve.queueing import Busy, Closing, JobQueue, TooSlow
from monge.serve.requests import MAX_ROWS
from monge.serve.security import Access, Guard, make_token
from monge.serve.served import load

TOKEN = make_token()
BEARER = {"authorization": f"Bearer {TOKEN}"}


def read_table(path):
    """The nearest floats of what was written, which pandas before 3.1 reads only if asked."""
    return pd.read_csv(path, float_precision="round_trip")


def people(n: int = 120) -> pd.DataFrame:
    g = np.random.default_rng(0)
    group = g.integers(0, 3, n)
    return pd.DataFrame(
        {
            "age": np.round(30 + 10 * group + g.normal(size=n), 1),
            "<script>alert(1)</script>": np.array(["red", "green", "blue"])[group],
            "weight": np.round(60 + 5 * group + g.normal(size=n), 2),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("served")
    people().to_csv(where / "people.csv", index=False)
    target = people().rename(columns={"<script>alert(1)</script>": "colour"})
    target.to_csv(where / "colours.csv", index=False)
    images = np.random.default_rng(0).integers(0, 4, (60, 4, 4)).astype(np.uint8)
    np.save(where / "images.npy", images)
    (where / "words.txt").write_text("\n".join(["anna", "bob", "otto", "hannah", "eve"] * 8))
    months = pd.date_range("2001-01", periods=80, freq="MS").strftime("%Y-%m")
    level = 50 + 10 * np.sin(np.arange(80) * np.pi / 6) + np.random.default_rng(1).normal(size=80)
    pd.DataFrame({"month": months, "y": level.round(2)}).to_csv(where / "series.csv", index=False)
    (where / "pairs").mkdir()
    for language, texts in (("de", ["ein hund", "eine katze"]), ("en", ["a dog", "a cat"])):
        (where / "pairs" / f"train.{language}").write_text("\n".join(texts * 20) + "\n")
    fits = {
        "table": ("mixture", "people.csv", "components=3"),
        "colour": ("predict.mlp", "colours.csv", "target=colour"),
        "images": ("vae", "images.npy"),
        "words": ("gpt", "words.txt"),
        "pixels": ("made", "images.npy"),
        "series": ("direct_forecast", "series.csv", "data.horizon=6", "data.lookback=24"),
        "pairs_run": ("seq2seq", "pairs", "data.tokens=chars", "width=16", "depth=1"),
    }
    for name, (model, data, *settings) in fits.items():
        target = [one.removeprefix("target=") for one in settings if one.startswith("target=")]
        monge.fit(
            model,
            str(where / data),
            *(one for one in settings if not one.startswith("target=")),
            budget="4steps",
            target=target[0] if target else None,
            out=where / name,
        )
    return where


@pytest.fixture(scope="module")
def served(folder):
    names = ("table", "colour", "images", "words", "pixels", "series", "pairs_run")
    return load([folder / name for name in names])


@pytest.fixture(scope="module")
def web(served):
    app = Guard(make_app(served), Access.at(None, 8000, TOKEN, public=PUBLIC))
    with TestClient(app, base_url="http://127.0.0.1:8000", headers=BEARER) as found:
        yield found


def ask(web, path, **body):
    answer = web.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rows_of(n: int) -> list[dict]:
    return people(n).to_dict("records")


def cli(*args) -> None:
    assert attempt([str(arg) for arg in args]) == 0


# answers equal those of the command line


def test_scores_equal_those_of_the_command_line(web, folder, tmp_path):
    rows = people(37)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    cli("score", folder / "table", tmp_path / "rows.csv", "-o", tmp_path / "out.csv", "-q")
    expected = read_table(tmp_path / "out.csv")["nats"].tolist()
    assert ask(web, "table/score", rows=rows.to_dict("records"))["nats"] == expected


def test_the_bound_of_images_equals_that_of_the_command_line(web, folder, tmp_path):
    images = np.load(folder / "images.npy")[:19]
    np.save(tmp_path / "rows.npy", images)
    out = tmp_path / "out.csv"
    cli("score", folder / "images", tmp_path / "rows.npy", "--seed", 5, "-o", out, "-q")
    expected = read_table(out)
    found = ask(web, "images/score", rows=images.tolist(), seed=5)
    assert found["nats"] == expected["nats"].tolist()
    assert found["stderr"] == expected["stderr"].tolist()
    assert found["kind"] == "bound"


def test_samples_equal_those_of_the_command_line(web, folder, tmp_path):
    cli("sample", folder / "table", "-n", 9, "--seed", 3, "-o", tmp_path / "out.csv", "-q")
    found = ask(web, "table/sample", n=9, seed=3)["samples"]
    pd.DataFrame(found).to_csv(tmp_path / "found.csv", index=False)
    assert (tmp_path / "found.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()


def test_predictions_equal_those_of_the_command_line(web, folder, tmp_path):
    rows = read_table(folder / "colours.csv")[["age", "weight"]].head(21)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out.csv"
    cli("predict", folder / "colour", tmp_path / "rows.csv", "-o", out, "-q")
    expected = read_table(out).to_dict("records")
    assert ask(web, "colour/predict", rows=rows.to_dict("records"))["predictions"] == expected


def test_completions_equal_those_of_the_command_line(web, folder, tmp_path):
    rows = people(8).astype(object)
    rows.loc[2, "age"] = rows.loc[5, "weight"] = None
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out.csv"
    cli("complete", folder / "table", tmp_path / "rows.csv", "--seed", 2, "-o", out, "-q")
    found = ask(web, "table/complete", rows=rows.to_dict("records"), seed=2)
    assert found["filled"] == 2
    pd.DataFrame(found["rows"]).to_csv(tmp_path / "found.csv", index=False)
    assert (tmp_path / "found.csv").read_bytes() == out.read_bytes()


def test_codes_equal_those_of_the_command_line_and_decode(web, folder, tmp_path):
    images = np.load(folder / "images.npy")[:5]
    np.save(tmp_path / "rows.npy", images)
    cli("encode", folder / "images", tmp_path / "rows.npy", "-o", tmp_path / "out.npz", "-q")
    arrays = np.load(tmp_path / "out.npz")
    expected = np.stack([arrays[name] for name in arrays if name[0] == "z"], 1)
    codes = ask(web, "images/encode", rows=images.tolist())["codes"]
    assert np.array_equal(np.array(codes, np.float32), expected.astype(np.float32))
    decoded = ask(web, "images/decode", codes=codes)["rows"]
    run = load_run(folder / "images")
    assert np.array_equal(decoded, run.decode(np.array(codes)))


def test_completed_images_keep_what_is_known(web, folder):
    image = np.load(folder / "images.npy")[0].tolist()
    holes = [row.copy() for row in image]
    holes[1][2] = holes[3][0] = None
    found = ask(web, "images/complete", rows=[holes])
    assert found["filled"] == 2
    for there, known in zip(np.ravel(found["rows"][0]), np.array(holes).ravel(), strict=True):
        assert known is None or there == known


def test_texts_equal_those_of_the_command_line_and_stream(web, folder, capsys):
    args = ["sample", folder / "words", "-n", 3, "--seed", 1, "--prompt", "an", "--json"]
    cli(*args)
    expected = json.loads(capsys.readouterr().out)["samples"]
    body = {"n": 3, "seed": 1, "prompt": "an"}
    assert ask(web, "words/sample", **body)["samples"] == expected
    answer = web.post("/v1/words/sample", json={**body, "stream": True})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert len(lines) > 2
    assert lines[-1]["samples"] == expected
    assert all(set(line) == {"state"} for line in lines[:-1])


def test_forecasts_equal_those_of_the_command_line(web, folder, tmp_path):
    out = tmp_path / "out.csv"
    cli("forecast", folder / "series", "-n", 50, "--seed", 4, "-o", out, "-q")
    expected = read_table(out).to_dict("records")
    assert ask(web, "series/forecast", n=50, seed=4)["forecast"] == expected
    rows = read_table(folder / "series.csv").head(60)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    args = (tmp_path / "rows.csv", "-n", 50, "--horizon", 3, "-o", out, "-q")
    cli("forecast", folder / "series", *args)
    found = ask(web, "series/forecast", rows=rows.to_dict("records"), n=50, horizon=3)
    assert found["forecast"] == read_table(out).to_dict("records")


def test_translations_equal_those_of_the_command_line(web, folder, capsys):
    cli("translate", folder / "pairs_run", "ein hund", "--json")
    expected = json.loads(capsys.readouterr().out)["translations"]
    assert ask(web, "pairs_run/translate", texts=["ein hund"])["translations"] == expected


def test_the_states_of_a_picture_are_streamed_and_end_with_the_samples(web):
    body = {"n": 2, "seed": 6}
    answer = web.post("/v1/pixels/sample", json={**body, "stream": True})
    *states, last = [json.loads(line) for line in answer.text.splitlines()]
    assert len(states) > 2
    assert all(np.shape(state["state"]) == (2, 4, 4) for state in states)
    assert last["samples"] == ask(web, "pixels/sample", **body)["samples"]


# batching


def test_a_request_has_the_same_answer_alone_and_beside_others(served):
    run = served[0]
    task = run.tasks["score"]
    every = rows_of(90)
    sizes = [1, 3, 1, 17, 2, 1, 40, 5]
    starts = np.cumsum([0, *sizes])
    bodies = [task.request(rows=every[a : a + n]) for a, n in zip(starts, sizes, strict=False)]
    alone = [task.answer(body) for body in bodies]
    before = run.batches
    assert task.answer_many(bodies) == alone
    assert run.batches - before == 3  # of 16, 32 and 64 rows
    assert task.answer_many(bodies[::-1]) == alone[::-1]


def test_the_noise_of_a_bound_is_keyed_within_a_request(served, folder):
    task = served[2].tasks["score"]
    images = np.load(folder / "images.npy").tolist()
    bodies = [task.request(rows=images[a : a + 2], seed=3) for a in range(0, 12, 2)]
    assert task.answer_many(bodies) == [task.answer(body) for body in bodies]


def test_texts_of_different_lengths_are_scored_as_alone(served):
    task = served[3].tasks["score"]
    bodies = [task.request(rows=[text]) for text in ("anna", "bob", "otto", "hannah", "a", "eve")]
    bodies.append(task.request(rows=["eve", "hannah"]))
    assert task.answer_many(bodies) == [task.answer(body) for body in bodies]


def test_one_wrong_request_does_not_spoil_the_others(served):
    task = served[0].tasks["score"]
    rows = rows_of(3)
    wrong = task.request.model_construct(rows=[{**rows[0], "age": "old"}], seed=0, options=None)
    bodies = [task.request(rows=rows), wrong, task.request(rows=rows[:1])]
    first, error, last = task.answer_many(bodies)
    assert first == task.answer(bodies[0])
    assert last == task.answer(bodies[2])
    assert isinstance(error, monge.DataError)
    assert "row 1" in str(error)


def test_rows_with_empty_cells_are_read_apart(served):
    task = served[0].tasks["score"]
    rows = rows_of(4)
    bodies = [task.request(rows=rows[:2]), task.request(rows=rows[2:])]
    empty = task.request.model_construct(rows=[{**rows[0], "age": None}], seed=0, options=None)
    *found, error = task.answer_many([*bodies, empty])
    assert found == [task.answer(body) for body in bodies]
    assert error == task.answer_many([empty])[0] or isinstance(error, monge.DataError)


def test_requests_of_several_clients_share_batches(served):
    counted = served[0].batches
    app = Guard(make_app(served, window=0.2), Access.at(None, 8000, TOKEN))
    with (
        TestClient(app, base_url="http://127.0.0.1:8000", headers=BEARER) as web,
        ThreadPoolExecutor(8) as pool,
    ):
        rows = rows_of(8)
        found = list(pool.map(lambda row: ask(web, "table/score", rows=[row])["nats"][0], rows))
        line = 'monge_batches_total{run="table",task="score"} '
        text = web.get("/metrics").text.partition(line)[2]
    task = served[0].tasks["score"]
    assert served[0].batches - counted < 8
    assert float(text.split()[0]) == served[0].batches - counted
    assert found == [task.answer(task.request(rows=[row]))["nats"][0] for row in rows]


# refusals


def refused(web, status, path, **body):
    answer = web.post(f"/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


def test_wrong_rows_are_refused_in_a_sentence(web):
    row = rows_of(1)[0]
    assert "age" in refused(web, 422, "table/score", rows=[{**row, "age": "old"}])
    assert "size" in refused(web, 422, "table/score", rows=[{**row, "size": 3}])
    del row["weight"]
    assert "weight" in refused(web, 422, "table/score", rows=[row])
    row["weight"] = 60.0
    assert "rows" in refused(web, 422, "table/score", rows=[])
    assert "rows" in refused(web, 422, "table/score")
    refused(web, 422, "table/score", rows=[{**row, "age": True}])
    refused(web, 422, "table/score", rows=[{**row, "age": 1e39}])
    refused(web, 422, "images/score", rows=[[[1, 2], [3, 4]]])
    refused(web, 422, "images/score", rows=[[[300] * 4] * 4])
    refused(web, 422, "images/decode", codes=[[1.0, 2.0]])
    refused(web, 422, "words/score", rows=["zebra"])
    refused(web, 422, "table/sample", seed=-1)
    refused(web, 422, "table/sample", options={"nothing": 1})
    refused(web, 422, "table/sample", where=["height>2"])
    refused(web, 422, "table/complete", rows=[row])
    assert web.post("/v1/table/score", content=b"{").status_code == 422
    assert web.post("/v1/table/score", content=b"[]").status_code == 422


def test_too_much_at_once_is_refused(web):
    refused(web, 413, "table/sample", n=MAX_ROWS + 1)
    refused(web, 413, "table/score", rows=rows_of(1) * (MAX_ROWS + 1))


def test_what_is_not_there_is_refused(web):
    assert web.post("/v1/nothing/score", json={}).status_code == 404
    assert web.post("/v1/table/translate", json={}).status_code == 404
    assert web.get("/v1/table/score").status_code == 405
    for path in (
        "/v1/table/../../etc/passwd",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "/v1/%252e%252e/run.json",
        "/v1/\uff0e\uff0e/run.json",
        "/docs.css/../run.json",
        "/%00",
    ):
        assert web.get(path).status_code in (404, 405)


def test_a_full_queue_and_a_late_answer_are_refused(served):
    ready, go = threading.Event(), threading.Event()
    app = make_app(served[:1], waiting=1, seconds=1.0)
    task = served[0].tasks["sample"]
    slow = Guard(app, Access.at(None, 8000, TOKEN))
    original = type(served[0]).sample

    def wait(self, body):
        ready.set()
        go.wait(5)
        return original(self, body)

    object.__setattr__(task, "answer", lambda body: wait(served[0], body))
    try:
        with (
            TestClient(slow, base_url="http://127.0.0.1:8000", headers=BEARER) as web,
            ThreadPoolExecutor(3) as pool,
        ):
            first = pool.submit(web.post, "/v1/table/sample", json={})
            assert ready.wait(5)
            second = pool.submit(web.post, "/v1/table/sample", json={})
            while not app.state.queues["table"].jobs:
                assert not second.done()
                time.sleep(0.01)
            third = web.post("/v1/table/sample", json={})
            assert third.status_code == 429
            assert "retry-after" in third.headers
            assert first.result().status_code == second.result().status_code == 503
            assert not app.state.queues["table"].jobs  # nobody waits for it any more
            go.set()
            assert web.post("/v1/table/sample", json={}).status_code == 200
    finally:
        go.set()
        object.__setattr__(task, "answer", served[0].sample)


def test_a_queue_answers_in_order_and_ends():
    queue = JobQueue("test", window=0.0, waiting=2, seconds=1.0)

    async def use():
        assert await queue.ask(3, lambda questions: [questions[0] + 1]) == 4
        with pytest.raises(ZeroDivisionError):
            await queue.ask(0, lambda questions: [1 // questions[0]])
        found = [state async for state in queue.stream(lambda: iter(range(20)))]
        assert found == list(range(20))
        sleeping = [
            asyncio.ensure_future(queue.ask(0, lambda q: [time.sleep(0.3)])) for _ in range(4)
        ]
        results = await asyncio.gather(*sleeping, return_exceptions=True)
        assert any(isinstance(result, Busy) for result in results)
        with pytest.raises(TooSlow):
            await queue.ask(0, lambda q: [time.sleep(1.2)])

    asyncio.run(use())
    queue.close()
    assert not queue.thread.is_alive()
    with pytest.raises(Closing):
        asyncio.run(queue.ask(0, lambda q: q))


def test_a_stream_that_nobody_reads_is_left():
    queue, seen = JobQueue("test", seconds=5.0), []

    def states():
        for number in range(10_000):
            seen.append(number)
            yield number

    async def use():
        found = queue.stream(states)
        assert await anext(found) == 0
        await found.aclose()
        assert await queue.ask(1, lambda q: q) == 1

    asyncio.run(use())
    queue.close()
    assert len(seen) < 100


# pages, health and metrics


def test_health_needs_no_token_and_metrics_do(web):
    bare = {"authorization": ""}
    assert web.get("/health", headers=bare).json() == {"status": "ok"}
    for path in ("/metrics", "/docs", "/openapi.json", "/v1", "/v1/table/health"):
        assert web.get(path, headers=bare).status_code == 401
        assert web.get(path).status_code == 200
    assert web.get("/v1/table/health").json()["tasks"] == ["sample", "score", "complete"]
    assert web.get("/v1/series/health").json()["tasks"] == ["forecast"]


def test_requests_are_counted(web):
    def count(status):
        line = f'monge_requests_total{{run="table",task="score",status="{status}"}} '
        text = web.get("/metrics").text
        return float(next(one for one in text.splitlines() if one.startswith(line)).split()[-1])

    good, wrong = count("2xx"), count("422")
    ask(web, "table/score", rows=rows_of(2))
    refused(web, 422, "words/score", rows=["zebra"])
    row = {**rows_of(1)[0], "<script>alert(1)</script>": "purple"}
    refused(web, 422, "table/score", rows=[row])
    assert count("2xx") == good + 1
    assert count("422") >= wrong


def test_the_page_escapes_names_and_loads_nothing_foreign(web):
    page = web.get("/docs")
    assert "<script" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert " style=" not in page.text
    assert web.get("/docs.css").headers["content-type"].startswith("text/css")


def test_the_description_names_every_task(web):
    document = web.get("/openapi.json").json()
    for path in ("/v1/table/score", "/v1/colour/predict", "/v1/images/decode", "/health"):
        assert path in document["paths"]
    assert document["paths"]["/v1/table/score"]["post"]["security"] == [{"token": []}]


# bad input


def test_runs_that_cannot_be_served_say_why(folder, tmp_path):
    with pytest.raises(RunError, match="nothing"):
        load([folder / "nothing"])
    with locked(folder / "words"), pytest.raises(RunError, match=r"words.*another process"):
        load([folder / "words"])
    with pytest.raises(UsageError, match="table"):
        load([folder / "table", folder / "table"])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{}")
    with pytest.raises(RunError, match="format"):
        load([damaged])
    strange = tmp_path / "a<b>"
    strange.symlink_to(folder / "table")
    assert load([strange])[0].name == "table"


def test_a_port_that_is_taken_is_said_with_one_that_is_free(folder):
    with listening.bind(None, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)) as error:
            server.prepare([str(folder / "table")], None, port, None, 1)
    free = int(str(error.value).partition("--port ")[2].split(",")[0])
    listening.listen("127.0.0.1", free).close()
    with pytest.raises(UsageError, match=r"203\.0\.113\.1"):
        listening.bind("203.0.113.1", 0)


# a real server


@pytest.fixture(scope="module")
def real(folder):
    """A server on a port of this machine, in a thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "HEADER_SECONDS", 0.5)
        token = folder / "token"
        prepared = server.prepare([str(folder / "table")], None, 0, token, 1)
        running = uvicorn.Server(listening.server_config(prepared.app, factory=True))
        thread = threading.Thread(target=running.run, args=([prepared.socket],))
        thread.start()
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.02)
        yield prepared
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def raw(prepared, data: bytes, wait: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", prepared.port), timeout=wait) as line:
        line.sendall(data)
        found = b""
        while part := line.recv(65536):
            found += part
            if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                break
        return found


def test_a_real_server_answers_and_survives_attacks(real, folder):
    before = sorted((folder / "table").rglob("*"))
    base, token = f"http://127.0.0.1:{real.port}", real.access.token
    good = {"authorization": f"Bearer {token}"}
    head = f"Host: 127.0.0.1:{real.port}\r\nAuthorization: Bearer {token}\r\n".encode()

    def status(data: bytes) -> bytes:
        return raw(real, data).split(b" ")[1]

    assert status(b"GET /v1 HTTP/1.1\r\n" + head + b"\r\n") == b"200"
    assert status(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b"401"
    assert status(b"GET /v1 HTTP/1.1\r\nHost: evil.example\r\n\r\n") == b"403"
    assert status(b"GET /v1 HTTP/1.1\r\n" + head + b"Host: x\r\n\r\n") == b"400"
    assert status(b"GET /../../etc/passwd HTTP/1.1\r\n" + head + b"\r\n") == b"404"
    assert status(b"GET /%2e%2e%2fetc%2fpasswd HTTP/1.1\r\n" + head + b"\r\n") == b"404"
    assert status(b"nonsense\r\n\r\n") == b"400"
    post = b"POST /v1/table/score HTTP/1.1\r\n" + head + b"Content-Type: application/json\r\n"
    assert status(post + b"Content-Length: 99999999999\r\n\r\n") == b"413"
    foreign = b"Origin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}"
    assert status(post + foreign) == b"403"
    assert status(post + b"Sec-Fetch-Site: cross-site\r\nContent-Length: 2\r\n\r\n{}") == b"403"
    # a slow client is cut off, and others are answered meanwhile
    with socket.create_connection(("127.0.0.1", real.port), timeout=5) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0")
        with httpx.Client(base_url=base, headers=good) as web:
            assert web.get("/v1/table/health").status_code == 200
        assert line.recv(100) == b""
    with socket.create_connection(("127.0.0.1", real.port), timeout=5) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 " in line.recv(1000)
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0")  # the second request is slow
        assert b"" in (line.recv(1000), line.recv(1000))
    with httpx.Client(base_url=base, headers=good) as web:
        answer = web.post("/v1/table/sample", json={"n": 2})
        assert answer.status_code == 200
        assert "server" not in answer.headers
    assert sorted((folder / "table").rglob("*")) == before


def test_a_request_that_was_begun_is_answered_when_the_server_stops(served):
    begun, go = threading.Event(), threading.Event()
    task = served[0].tasks["sample"]

    def slow(body):
        begun.set()
        go.wait(10)
        return served[0].sample(body)

    object.__setattr__(task, "answer", slow)
    try:
        taken = listening.bind(None, 0)
        port = taken.getsockname()[1]
        app = Guard(make_app(served[:1]), Access.at(None, port, TOKEN))
        running = uvicorn.Server(listening.server_config(app))
        thread = threading.Thread(target=running.run, args=([taken],))
        thread.start()
        with ThreadPoolExecutor(1) as pool:
            address = f"http://127.0.0.1:{port}/v1/table/sample"
            answer = pool.submit(httpx.post, address, json={}, headers=BEARER, timeout=30)
            assert begun.wait(10)
            running.should_exit = True
            while taken.fileno() != -1 and thread.is_alive() and not go.is_set():
                with socket.socket() as line:  # until nothing listens any more
                    if line.connect_ex(("127.0.0.1", port)):
                        go.set()
            go.set()
            assert answer.result().status_code == 200
        thread.join(20)
        assert not thread.is_alive()
    finally:
        go.set()
        object.__setattr__(task, "answer", served[0].sample)


def test_the_command_line_says_which_extra_is_missing(folder, monkeypatch, capsys):
    import builtins

    real_import = builtins.__import__

    def missing(name, *args, **rest):
        if name == "serve" or name.startswith(("fastapi", "monge.serve")):
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return real_import(name, *args, **rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert attempt(["serve", str(folder / "table")]) == 2
    assert "monge[serve]" in capsys.readouterr().err


def test_options_that_multiply_to_too_much_are_refused():
    from monge.models.latent.vae import VAE
    from monge.serve.requests import MAX_SETTING, options_type

    kind = options_type(VAE.LikelihoodConfig, "ScoreOptions")
    assert kind(temperatures=MAX_SETTING, samples=1).temperatures == MAX_SETTING
    with pytest.raises(ValueError, match=rf"samples.*temperatures.*{MAX_SETTING}"):
        kind(temperatures=MAX_SETTING // 2, samples=3)
