"""The pages of the studio without a browser: what they show, and what they refuse."""

import io
import json
import os
import shutil
import socket
import zipfile
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("fastapi", reason="the studio needs fastapi; install 'monge[studio]'")
pytest.importorskip("multipart", reason="the studio needs python-multipart")

from starlette.testclient import TestClient

import monge
from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.run import storage
from monge.serve.security import Access
from monge.studio import app, ask, compare, forms, jobs, loaded, pages, uploads

TOKEN = "a-token-of-the-tests"
ROWS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A runs folder with runs on a table and on pictures."""
    place = tmp_path_factory.mktemp("studio") / "runs"
    place.mkdir()
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=ROWS).round(2),
            "count": rng.integers(0, 5, ROWS),
            "<b>name</b>": rng.choice(["a&b", "<script>x</script>", "c"], ROWS),
        }
    )
    table.loc[3, "size"] = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONGE_RUNS", str(place))
        uploads.home().mkdir()
        table.to_csv(uploads.home() / "own.csv", index=False)
        own = str(uploads.home() / "own.csv")
        monge.fit("baseline.chow_liu", own, out=place / "tree")
        monge.fit("baseline.independent", own, out=place / "apart")
        monge.fit("baseline.independent", "digits", "data.rows=200", out=place / "pictures")
        monge.fit("baseline.gaussian", "wine", out=place / "numbers")
        table["group"] = np.where(table["count"] > 2, "high", "low")
        table["copy"] = table["group"].str.upper()
        table.to_csv(uploads.home() / "grouped.csv", index=False)
        grouped = str(uploads.home() / "grouped.csv")
        monge.fit("baseline.independent", grouped, given=["group"], out=place / "grouped")
        monge.fit("baseline.independent", grouped, out=place / "derived")
    return place


@pytest.fixture(autouse=True)
def _runs(_own_runs_folder, folder, monkeypatch):
    monkeypatch.setenv("MONGE_RUNS", str(folder))
    loaded.SUMMARIES.clear()


@pytest.fixture
def client():
    studio = app.make_studio(Access.at(None, 8700, TOKEN))
    return TestClient(
        studio,
        base_url="http://127.0.0.1:8700",
        headers={"authorization": f"Bearer {TOKEN}"},
        follow_redirects=False,
        raise_server_exceptions=False,
    )


def own_data(folder):
    return str((folder / "uploads" / "own.csv").resolve())


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/?q=tree",
        "/data",
        "/data/show?data=OWN",
        "/fit",
        "/fit?data=OWN",
        "/fit?data=OWN&model=latent.vae",
        "/runs/tree",
        "/runs/tree/curves?by=seconds",
        "/runs/tree/samples?n=3",
        "/runs/tree/samples?n=3&where=count%3D1",
        "/runs/tree/score?of=test",
        "/runs/pictures/score?of=test",
        "/runs/tree/about",
        "/runs/tree/ask",
        "/runs/tree/ask?tool=complete&go=1&cell.size=",
        "/none",
        "/runs/pictures/ask?tool=complete&go=1",
        "/compare?run=tree&run=apart&compute=1",
        "/compare/rows?a=tree&b=apart",
        "/compare/new?data=OWN",
        "/jobs",
    ],
)
def test_pages_are_whole_and_nothing_of_the_data_is_markup(client, folder, address):
    answer = client.get(address.replace("OWN", own_data(folder)))
    assert answer.status_code == (404 if "none" in address else 200), answer.text
    assert "<script>x" not in answer.text
    assert "<b>name" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("text", ["<script>x</script>", "`<script>x</script>`", "`<script>x"])
def test_what_an_address_says_is_no_markup(client, text):
    for path in ("/runs/tree/ask?tool=", "/runs/tree/samples?n=", "/?q=", "/data/show?data="):
        answer = client.get(path + quote(text))
        assert answer.status_code in (200, 422)
        assert "script&gt;x" in answer.text
        assert "<script>x" not in answer.text


def test_a_part_of_a_page_is_the_part_alone(client):
    assert "<html" not in client.get("/runs/tree/samples", headers={"x-fragment": "1"}).text


@pytest.mark.parametrize("picture", ["samples.png", "ask/complete.png", "ask/row.png"])
def test_pictures_are_drawn(client, picture):
    answer = client.get(f"/runs/pictures/{picture}")
    assert answer.content.startswith(b"\x89PNG")


def test_samples_are_downloaded_in_the_form_of_the_data(client, folder):
    answer = client.get("/runs/tree/download/csv?n=7")
    made = pd.read_csv(io.BytesIO(answer.content))
    assert list(made) == list(pd.read_csv(folder / "uploads" / "own.csv"))
    assert len(made) == 7


def test_rows_that_one_gives_are_scored_as_the_command_line_does(client, folder):
    rows = pd.read_csv(folder / "uploads" / "own.csv").iloc[:4]
    answer = client.post("/runs/tree/score", data={"rows": rows.to_csv(index=False)})
    known = monge.load(folder / "tree").log_likelihood(rows).mean
    assert f"{known.value:.4g}" in answer.text
    assert known.kind in answer.text


def test_nobody_asks_without_the_token_or_from_another_site(client, folder):
    bare = {"authorization": ""}
    assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/runs/tree", headers=bare).status_code == 401
    before = sorted(folder.rglob("*"))
    foreign = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert client.post("/fit", data={"data": "iris"}, headers=foreign).status_code == 403
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    [
        "..%2fruns%2ftree",
        "..%2f..%2fetc",
        "%2e%2e",
        "%252e%252e",
        "..:outside",
        "..:runs:tree",
        "\uff0e\uff0e:outside",
        ".jobs",
        "none",
    ],
)
def test_runs_are_below_the_runs_folder(client, folder, name):
    shutil.copytree(folder / "tree", folder.parent / "outside", dirs_exist_ok=True)
    for part in ("", "/curves", "/state", "/events", "/samples", "/about"):
        assert client.get(f"/runs/{name}{part}").status_code in (404, 422)
    assert client.get(f"/comparisons/{name}").status_code in (404, 422)


def test_a_run_that_is_a_link_out_is_shown_with_its_sentence(client, folder):
    shutil.copytree(folder / "tree", folder.parent / "outside", dirs_exist_ok=True)
    (folder / "linked").symlink_to(folder.parent / "outside")
    try:
        answer = client.get("/")
        assert answer.text.count("pill damaged") == 1
        assert client.get("/runs/linked").status_code == 422
        assert client.get("/runs/linked/samples").status_code == 422
    finally:
        (folder / "linked").unlink()


def test_a_fit_is_made_in_the_runs_folder_and_not_by_a_file(client, folder, monkeypatch):
    asked = []
    monkeypatch.setattr(jobs, "submit", lambda name, args, **about: asked.append((name, args)))
    form = {"data": own_data(folder), "model": "baseline.chow_liu", "name": "../../a; rm -rf /"}
    assert client.post("/fit", data=form).status_code == 303
    ((name, args),) = asked
    assert "/" not in name
    assert args[args.index("--out") + 1] == str(folder.resolve() / name)
    for other in ({"model": "./evil.py"}, {"data": "/etc/passwd"}, {"more": "start=/etc/x"}):
        assert client.post("/fit", data=form | other).status_code == 422
    compared = {"data": own_data(folder), "model": "./evil.py"}
    assert client.post("/compare", data=compared).status_code == 422
    assert len(asked) == 1


def test_a_report_runs_no_script(client):
    answer = client.get("/runs/tree/report")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "sandbox" in answer.headers["content-security-policy"]


def test_data_is_built_in_or_below_its_folders(folder, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    link = folder / "uploads" / "link.csv"
    link.symlink_to(secret)
    try:
        for text in (str(secret), str(link), f"{own_data(folder)}/../../../secret.csv"):
            with pytest.raises((UsageError, DataError)):
                loaded.check_data(text)
    finally:
        link.unlink()
    assert loaded.check_data("digits+low2")
    assert loaded.check_data(own_data(folder))


def pack(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as found:
        for name, content in files.items():
            found.writestr(name, content)
    return out.getvalue()


def test_an_upload_is_saved_by_a_safe_name_and_shown(client, folder):
    content = b"x,y\n" + b"1.5,2\n2.5,3\n3.25,4\n" * 30
    answer = client.post("/data/upload", files={"file": ("../<i>.csv", content)})
    assert answer.status_code == 303
    assert (folder / "uploads" / "i-.csv").read_bytes() == content
    assert client.get(answer.headers["location"]).status_code == 200
    (folder / "uploads" / "i-.csv").unlink()


def test_a_zip_is_unpacked_inside_its_folder(folder):
    link = zipfile.ZipInfo("b/link.txt")
    link.external_attr = 0o120777 << 16
    files = {"../../a.csv": "x\n1\n", "b/<i>.txt": "d", link: "/etc/passwd"}
    path = uploads.save("set.zip", io.BytesIO(pack(files)))
    try:
        inside = sorted(p.name for p in path.rglob("*") if p.is_file())
        assert inside == ["i-.txt"]
        assert not list(folder.parent.rglob("a.csv"))
        assert all(p.resolve().is_relative_to(path.resolve()) for p in path.rglob("*"))
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.zip", pack({"zeros.csv": b"0" * (30 << 20)})),
        ("many.zip", pack({f"{k}.txt": b"a" for k in range(9)})),
        ("empty.zip", pack({"run.sh": "rm"})),
        ("broken.zip", b"PK\x03\x04nothing"),
        ("run.json", b"{}"),
        ("code.py", b"1"),
    ],
)
def test_uploads_that_are_refused_leave_nothing(client, folder, name, content, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_FILES", 8)
    before = sorted(uploads.home().iterdir())
    answer = client.post("/data/upload", files={"file": (name, content)})
    assert answer.status_code == 422
    assert 'class="problem"' in answer.text
    assert sorted(uploads.home().iterdir()) == before


def test_an_upload_that_is_too_large_is_refused(client, monkeypatch):
    before = sorted(uploads.home().iterdir())
    monkeypatch.setattr(uploads, "MAX_UPLOAD", 1000)
    answer = client.post("/data/upload", files={"file": ("a.csv", b"1\n" * 2000)})
    assert answer.status_code == 422
    assert sorted(uploads.home().iterdir()) == before


def test_a_claim_of_a_zip_is_checked_while_it_is_unpacked(tmp_path):
    """The size that the directory of a zip claims is changed to a byte."""
    content = bytearray(pack({"a.csv": b"0" * 5000}))
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = (1).to_bytes(4, "little")
    (tmp_path / "lies.zip").write_bytes(content)
    with pytest.raises(DataError):
        uploads.unpack(tmp_path / "lies.zip", tmp_path / "out", "lies.zip")
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.csv")) <= 1


def test_damaged_runs_are_shown_with_their_sentence(client, folder):
    for name, content in (("broken", "{"), ("older", json.dumps({"format": 1}))):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(content)
    try:
        text = client.get("/").text
        assert "broken" in text
        assert "refit it" in text
        assert text.count("pill damaged") == 2
        assert client.get("/runs/broken").status_code == 200
        assert client.get("/runs/older/samples").status_code == 422
    finally:
        shutil.rmtree(folder / "broken")
        shutil.rmtree(folder / "older")


def test_a_run_in_training_is_shown_as_such(client, folder):
    with storage.locked(folder / "tree"):
        assert storage.is_locked(folder / "tree" / ".lock")
        assert "in training elsewhere" in client.get("/runs/tree").text
        assert client.post("/runs/tree/resume", data={"budget": "+1s"}).status_code == 422
    assert not storage.is_locked(folder / "tree" / ".lock")
    assert not storage.is_locked(folder / "none")


def test_a_form_returns_what_differs_from_the_defaults():
    from monge.models.latent.vae import VAE

    fields = list(forms.inputs(VAE.Config()))
    known = {field.name: field for field in fields}
    assert known["latent"].kind == "whole"
    assert known["latent"].low == 1
    same = {f"set.{field.name}": field.value for field in fields}
    assert forms.overrides(fields, same) == []
    assert forms.overrides(fields, same | {"set.latent": " 7 "}) == ["latent=7"]
    assert VAE.Config().override("latent=7").latent == 7


def test_a_fit_that_cannot_start_says_so_on_its_form(client, folder):
    form = {"data": own_data(folder), "model": "latent.vae", "set.latent": "-3", "budget": "1s"}
    answer = client.post("/fit", data=form)
    assert answer.status_code == 422
    assert "latent=-3" in answer.text
    assert not jobs.listing()
    assert client.post("/fit", data={**form, "more": "start=/etc/x"}).status_code == 422


def test_the_cost_is_said_before_the_work(client, folder):
    form = {"data": own_data(folder), "model": "baseline.chow_liu", "budget": "1s"}
    answer = client.post("/fit/cost", data=form)
    assert "parameters" in answer.text
    assert "per step" in answer.text


def test_a_mask_is_what_was_painted():
    painted = torch.zeros(3, 5, dtype=torch.bool)
    painted[1, 2] = painted[2, 4] = True
    digits = f"{int(''.join('01'[bit] for bit in painted.flatten().int()) + '0', 2):04x}"
    assert torch.equal(ask.hidden_mask({"mask": digits}, 3, 5), painted)
    assert ask.hidden_mask({"part": "left half"}, 4, 4)[:, :2].all()
    for wrong in ("zz", "0" * 3):
        with pytest.raises(UsageError):
            ask.hidden_mask({"mask": wrong}, 3, 5)


def test_a_completed_row_keeps_its_known_cells(folder):
    run = loaded.load("tree")
    cells = ask.table_cells(run, {"cell.size": "", "cell.count": "2"})
    answer = ask.completed_table(run, cells, {"draws": "5"})
    place = answer["head"].index("count")
    assert [row[place] for row in answer["rows"]] == [2] * 5
    assert answer["filled"][answer["head"].index("size")]
    assert not answer["filled"][place]


def test_a_row_is_completed_under_its_condition(folder):
    run = loaded.load("grouped")
    cells = ask.table_cells(run, {"cell.size": "", "cell.group": "high"})
    names = [cell["name"] for cell in cells]
    assert "group" in names
    assert cells[names.index("group")]["choices"] == ["high", "low"]
    answer = ask.completed_table(run, cells, {"draws": "2"})
    assert all(row[answer["head"].index("size")] is not None for row in answer["rows"])
    cells[names.index("group")]["value"] = ""
    with pytest.raises(DataError, match="group"):
        ask.completed_table(run, cells, {})


def test_computed_columns_follow_the_cells_that_are_changed(folder):
    run = loaded.load("derived")
    derived = {each.name for each in run.view.selection.schema.derived}
    assert derived & {"copy", "group"}
    cells = ask.table_cells(run, {"cell.size": ""})
    known = {cell["name"]: cell for cell in cells}
    assert not derived & set(known)
    (own,) = {"copy", "group"} - derived
    for value in known[own]["choices"]:
        known[own]["value"] = value
        answer = ask.completed_table(run, cells, {"draws": "1"})
        row = dict(zip(answer["head"], answer["rows"][0], strict=True))
        assert row["copy"] == row["group"].upper()
        assert row[own] == value


def test_typed_numbers_and_uploads_are_scored(client, folder):
    run = monge.load(folder / "numbers")
    rows = run.sample(3, seed=1)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    answer = client.post("/runs/numbers/score", data={"rows": text})
    known = run.log_likelihood(np.loadtxt(text.splitlines(), delimiter=",")).mean
    assert f"{known.value:.0f}" in answer.text
    assert client.post("/runs/numbers/score", data={"rows": "a,b"}).status_code == 422
    assert client.get(f"/runs/tree/score?of={own_data(folder)}").status_code == 200
    assert client.get("/runs/tree/score?of=/etc/passwd").status_code == 422
    assert client.get("/runs/pictures/rows.png?row=3").content.startswith(b"\x89PNG")
    assert client.get("/runs/pictures/rows.png?row=999999").status_code == 422


@pytest.mark.parametrize(
    "address",
    [
        "/runs/tree/samples?n=many",
        "/runs/tree/samples?n=0",
        "/runs/tree/samples?seed=-1",
        "/runs/tree/ask?tool=complete&go=1&cell.size=&draws=99",
        "/compare/rows?a=tree&b=tree",
        "/compare/rows?a=tree&b=pictures",
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(client, address):
    answer = client.get(address)
    assert answer.status_code == 422
    assert 'class="problem"' in answer.text


def test_values_are_written_with_the_digits_of_their_error():
    assert "-84.55</strong> ± 0.78" in pages.with_stderr(-84.5512, 0.7829)
    assert "+1235</strong> ± 57" in pages.with_stderr(1234.6, 56.7, "+")
    assert "0.5</strong>" in pages.with_stderr(0.5, 0.0)


def test_an_interval_is_wider_than_the_error_and_holds_the_value(client):
    board = compare.board(["tree", "apart"], None)
    for row in board["rows"]:
        low, high = row["interval"]
        mean = row["likelihood"]
        assert low < mean.value < high
        assert high - low == pytest.approx(2 * 1.96 * mean.stderr)
    assert board["chart"].count("whisker") == 2


def test_runs_on_different_data_are_not_compared(client):
    answer = client.get("/compare?run=tree&run=pictures")
    assert 'class="problem" role="alert"' in answer.text


def test_a_port_that_is_taken_and_a_folder_that_is_not_there(tmp_path, capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert attempt(["studio", "--no-browser", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert str(port) in said
    assert "--port" in said.partition(str(port))[2]
    assert attempt(["studio", "--no-browser", "--runs", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        assert attempt(["studio", "--no-browser", "--runs", str(tmp_path / "closed")]) == 2
