"""Markup in the names and cells of a table never runs, nor is it parsed, in a report.

Needs Playwright and Debian's chromium: `apt-get install chromium` and `pip install
'monge[browser]'`. Without them the tests are skipped with this sentence.
"""

import shutil

import numpy as np
import pandas as pd
import pytest

import monge

HOW = "needs a browser: `apt-get install chromium` and `pip install 'monge[browser]'`"
playwright = pytest.importorskip("playwright.sync_api", reason=HOW)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=HOW)

RUNS = "window.ran = true"
HOSTILE = (
    f"<script>{RUNS}</script>",
    f'<img src=x onerror="{RUNS}">',
    f"</style><svg onload='{RUNS}'>",
    f"</title><script>{RUNS}</script>",
    f'" autofocus onfocus="{RUNS}" x="',
    f"--><script>{RUNS}</script>",
    f"</script><script>{RUNS}</script>",
    f"<a href='javascript:{RUNS}'>x</a>",
)


def table() -> pd.DataFrame:
    """Hostile names of columns and hostile cells, with a number and empty cells beside them."""
    rng = np.random.default_rng(0)
    columns = {name: rng.choice([*HOSTILE, "plain", None], 80) for name in HOSTILE[:4]}
    return pd.DataFrame({**columns, HOSTILE[4]: rng.normal(size=80), "x": rng.normal(size=80)})


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of a run and of a comparison of such a table, which is a file named like it."""
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "<img src=x onerror=window.ran=true>.csv"
    table().to_csv(path, index=False)
    run = monge.fit("chow_liu", path, out=folder / "run")
    run.evaluate()
    board = monge.compare(path, "independent", "gaussian", budget="2steps", out=folder / "board")
    return [monge.write_report(run.folder), board.report]


@pytest.mark.slow
def test_markup_of_a_table_stays_text(reports):
    with playwright.sync_playwright() as found:
        browser = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for report in reports:
            page, asked = browser.new_page(), []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(report.as_uri())
            assert not page.evaluate("window.ran"), report
            assert len(asked) == 1, asked  # the page itself
            text = page.inner_text("body")
            assert HOSTILE[0] in text
            made = "[onerror], [onload], [onfocus], a[href^='javascript']"
            assert page.locator(made).count() == 0
        browser.close()
