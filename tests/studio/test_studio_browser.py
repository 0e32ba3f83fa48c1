"""The studio in a real browser: the whole journey, two tabs, a failing fit, keys, accessibility.

Needs Playwright and Debian's chromium: `apt-get install chromium` and `pip install
'monge[browser]'`. Without them the tests are skipped with this sentence.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import monge

HOW = "needs a browser: `apt-get install chromium` and `pip install 'monge[browser]'`"
pytest.importorskip("fastapi", reason="the studio needs fastapi; install 'monge[studio]'")
playwright = pytest.importorskip("playwright.sync_api", reason=HOW)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=HOW)
expect = playwright.expect
PATIENCE = 120_000
"""Milliseconds after which a step of a journey has failed; a busy machine is no failure."""
ROOT = Path(__file__).parents[2]
BLOCKING = {"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"}


class Studio:
    """A studio process on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "MONGE_RUNS": str(folder), "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        env.pop("MONGE_DATA", None)
        self.folder = folder
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "monge",
                "studio",
                "--no-browser",
                "--port",
                "0",
                "--stop-fits",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        assert self.process.stdout
        first = self.process.stdout.readline()
        found = re.search(r"http://\S+", first)
        assert found, first + self.process.stdout.read()
        self.address = found[0]
        self.origin = self.address.partition("/?")[0]

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout
        return self.process.stdout.read()


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    """A studio with two runs on the same pictures."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    monge.fit("latent.vae", "digits", budget="20steps", out=folder / "first")
    monge.fit("baseline.independent", "digits", out=folder / "second")
    found = Studio(folder)
    yield found
    found.end()
    found.process.wait(60)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        made = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(studio, browser):
    """A page that is signed in; no request may leave the origin, no script may fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    found = context.new_page()
    asked, failed = [], []
    context.on("request", lambda request: asked.append(request.url))
    found.on("pageerror", lambda error: failed.append(str(error)))
    found.goto(studio.address)
    yield found
    context.close()
    assert asked
    assert not [url for url in asked if not url.startswith(studio.origin)]
    assert not failed


def wait_idle(page):
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENCE)


def violations(page) -> list[str]:
    """What axe finds of level A and AA."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=HOW)
    found = axe.Axe().run(page, options={"runOnly": sorted(BLOCKING)}).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def start_fit(studio, page, model: str, name: str, budget: str) -> None:
    page.goto(f"{studio.origin}/fit?data=digits")
    page.get_by_role("link", name=re.compile(rf"^{re.escape(model)}\b")).click()
    page.get_by_label("budget").fill(budget)
    page.get_by_label("name of the run").fill(name)
    page.get_by_role("button", name="Start the fit").click()
    expect(page.locator("h1")).to_contain_text(name)


def test_from_data_to_a_comparison(studio, page):
    """Data, a fit of seconds, samples, in-painting, comparing."""
    page.get_by_role("link", name="Data", exact=True).click()
    page.get_by_role("link", name=re.compile("^digits ")).click()
    expect(page.locator("h1")).to_have_text("digits")
    start_fit(studio, page, "autoregressive.made", "drawn", "60steps")
    expect(page.locator("#state .pill")).to_have_text("fitted", timeout=PATIENCE)
    expect(page.locator("svg.curves").first).to_be_visible()
    expect(page.locator("#samples img")).to_be_visible(timeout=PATIENCE)
    page.get_by_role("link", name="Ask").click()
    brush = page.locator("canvas")
    box = brush.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] * 0.7)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] * 0.7, steps=12)
    page.mouse.up()
    mask = page.locator("input[name=mask]").input_value()
    assert len(mask) == 16
    assert int(mask, 16)
    page.get_by_role("button", name="Fill in").click()
    expect(page.locator("#answer img")).to_be_visible(timeout=PATIENCE)
    assert mask in page.locator("#answer img").get_attribute("src")
    page.goto(studio.origin)
    for name in ("drawn", "second"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("button", name="Compare the chosen").click()
    expect(page.locator("table.board tbody tr")).to_have_count(2, timeout=PATIENCE)
    expect(page.locator("svg.intervals")).to_be_visible()
    page.locator("table.board tbody tr").nth(1).get_by_role("link").nth(1).click()
    expect(page.locator("#pair .ranked img")).to_have_count(10, timeout=PATIENCE)
    expect(page.locator("#pair .answer")).to_contain_text("nats per row")
    assert not [path for path in (studio.folder / ".jobs").iterdir() if path.is_dir()]


def test_codes_are_moved_by_sliders_and_on_a_map(studio, page):
    page.goto(f"{studio.origin}/runs/first/ask?tool=sliders")
    picture = page.locator("#answer img")
    before = picture.get_attribute("src")
    slider = page.locator("input[type=range]").first
    slider.focus()
    page.keyboard.press("End")
    expect(picture).not_to_have_attribute("src", before, timeout=PATIENCE)
    assert slider.get_attribute("name") in picture.get_attribute("src")
    wait_idle(page)
    page.get_by_label("start from test row").fill("2")
    page.keyboard.press("Tab")
    expect(page).to_have_url(re.compile("reset=1"), timeout=PATIENCE)
    page.goto(f"{studio.origin}/runs/first/ask?tool=map")
    page.locator("svg.map").click(position={"x": 150, "y": 150})
    expect(picture).to_be_visible(timeout=PATIENCE)
    assert page.locator("input[name=a]").input_value() != "0.000"


def test_a_page_is_light(studio, page):
    """What the heaviest pages load, uncompressed, is below 300 kB."""
    size = """['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))
        .reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""
    for path in ("/", "/fit?data=digits&model=latent.vae", "/runs/first", "/runs/first/about"):
        page.goto(studio.origin + path)
        wait_idle(page)
        assert 10_000 < page.evaluate(size) < 300_000


def test_pages_read_without_scripts(studio, browser, page):
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    bare = context.new_page()
    bare.goto(studio.address)
    bare.goto(f"{studio.origin}/fit?data=digits&model=autoregressive.made")
    expect(bare.get_by_role("button", name="Start the fit")).to_be_visible()
    bare.goto(f"{studio.origin}/runs/first")
    expect(bare.locator("svg.curves").first).to_be_visible()
    bare.get_by_role("link", name="Show samples").click()
    expect(bare.locator("img.pixels")).to_be_visible()
    context.close()


def test_nothing_stands_in_the_way_of_anyone(studio, page):
    for path in (
        "/",
        "/data",
        "/data/show?data=digits",
        "/runs/first",
        "/compare?run=first&run=second",
    ):
        page.goto(studio.origin + path)
        wait_idle(page)
        assert not violations(page), path


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_every_page_fits_and_is_accessible(studio, browser, page, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    other = context.new_page()
    other.goto(studio.address)
    for path in (
        "/",
        "/data",
        "/data/show?data=wine",
        "/fit?data=digits",
        "/fit?data=digits&model=autoregressive.made",
        "/runs/first",
        "/runs/first/ask?tool=complete&go=1",
        "/runs/first/ask?tool=sliders",
        "/runs/first/ask?tool=map&go=1",
        "/runs/first/score?of=test",
        "/runs/first/about",
        "/compare?run=first&run=second",
    ):
        other.goto(studio.origin + path)
        wait_idle(other)
        width_of = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert other.evaluate(width_of) <= 0, path
        assert not violations(other), path
    context.close()


@pytest.mark.slow
def test_pause_resume_and_two_tabs(studio, browser, page):
    start_fit(studio, page, "latent.vae", "paused", "40s")
    pill = page.locator("#state .pill")
    expect(pill).to_have_text("in training", timeout=PATIENCE)
    log = studio.folder / "paused" / "log.jsonl"
    second = page.context.new_page()
    second.goto(f"{studio.origin}/runs/paused")
    expect(second.locator("#state .pill")).to_have_text("in training", timeout=PATIENCE)
    expect(page.locator("svg.curves").first).to_be_visible(timeout=PATIENCE)
    step = page.locator(".samples .quiet").first  # of the checkpoint that samples are from
    expect(step).to_be_visible(timeout=PATIENCE)
    first = step.inner_text()
    expect(step).not_to_have_text(first, timeout=PATIENCE)  # they follow the fit
    page.get_by_role("button", name="Pause").click()
    expect(pill).to_have_text("paused", timeout=PATIENCE)
    expect(second.locator("#state .pill")).to_have_text("paused", timeout=PATIENCE)
    before = [json.loads(line) for line in log.read_text().splitlines()]
    page.reload()
    page.get_by_role("button", name="Resume").click()
    expect(pill).to_have_text("in training", timeout=PATIENCE)
    expect(pill).to_have_text("fitted", timeout=PATIENCE)
    after = [json.loads(line) for line in log.read_text().splitlines()]
    assert after[0] == before[0]
    assert after[-1]["step"] > before[-1]["step"]


@pytest.mark.slow
def test_a_fit_that_fails_says_why(studio, page):
    page.goto(f"{studio.origin}/fit?data=digits&model=autoregressive.made")
    page.get_by_label("name of the run").fill("fails")
    page.get_by_text("Training", exact=True).click()
    page.locator("[name='set.train.lr']").fill("1e30")
    page.get_by_role("button", name="Start the fit").click()
    expect(page.locator("#state .pill")).to_have_text("failed", timeout=PATIENCE)
    expect(page.locator("#state .problem")).to_contain_text("train.lr")


@pytest.mark.slow
def test_keys_are_enough(studio, page):
    """From the list of runs to a completed picture with the keyboard alone."""
    page.goto(f"{studio.origin}/runs/first/ask?tool=complete")
    canvas = page.locator("canvas")
    canvas.focus()
    for key in ("Space", "Shift+ArrowLeft", "Shift+ArrowLeft", "ArrowUp", "Space"):
        page.keyboard.press(key)
    assert int(page.locator("input[name=mask]").input_value(), 16)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Fill in":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#answer img")).to_be_visible(timeout=PATIENCE)
    page.goto(studio.origin)
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Runs", "Data", "Fit", "Compare", "Fit a model", "first"} <= seen
