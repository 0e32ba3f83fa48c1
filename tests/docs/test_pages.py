"""What README.md and docs/ state is true: their code runs, their links lead somewhere, and the
generated pages have every command, option and model.

Code blocks of a page run in order in one empty folder, with tiny budgets: Python in one namespace,
and of a shell block the lines that begin with `monge`. A block after `<!-- not run: reason -->` is
left out.
"""

import contextlib
import importlib.util
import io
import json
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from monge import registry
from monge.cli.main import attempt, commands, summary
from monge.cli.main import monge as group

ROOT = Path(__file__).parents[2]
BESIDE = [
    ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?```(\w*)\n(.*?)^```$", re.M | re.S)
QUICK = {"table.md", "likelihood.md", "model.md", "reader.md", "metric.md", "data.md"}
"""Pages that take few seconds; the code of the others runs in the slow suite."""


@cache
def site():
    """The module that makes pages."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and text of each block that runs."""
    return [
        (language, text)
        for skipped, language, text in BLOCK.findall(page.read_text())
        if language in ("python", "sh") and not skipped
    ]


def shell_lines(text: str) -> list[list[str]]:
    """The arguments of each `monge` command of a block, with a budget of two steps."""
    found = []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] != "monge":
            continue
        if "--budget" in words:
            place = words.index("--budget") + 1
            words[place] = "+1steps" if words[place].startswith("+") else "2steps"
        elif words[1] in ("fit", "compare"):
            words += ["--budget", "2steps"]
        found.append(words[1:])
    return found


def marked(page: Path):
    quick = page.name in QUICK
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if blocks(page)])
def test_code_of_a_page_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for language, text in blocks(page):
        if language == "python":
            small = re.sub(r'budget="[^"]+"', 'budget="2steps"', text)
            exec(compile(small, page.name, "exec"), names)
            continue
        for words in shell_lines(text):
            printed = io.StringIO()
            with contextlib.redirect_stderr(printed):
                code = attempt(words)
            assert code == 0, f"monge {shlex.join(words)}: {printed.getvalue()[-500:]}"


def test_every_block_has_a_language():
    unnamed = [
        page.name for page in PAGES if any(not b[1] for b in BLOCK.findall(page.read_text()))
    ]
    assert not unnamed


def headings(text: str) -> set[str]:
    """The anchors of a page."""
    plain = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    made = set(site().generated())
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        assert not path.startswith("http"), f"{page.name} needs the network for {target}"
        file = (page.parent / path).resolve() if path else page
        if file.is_file():
            assert not anchor or anchor in headings(file.read_text()), target
        else:
            assert file.relative_to(ROOT / "docs").as_posix() in made, target


@cache
def helps() -> dict[str, str]:
    """What `--help` of each command prints."""
    found = {}
    for name in commands():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert attempt([name, "--help"]) == 0
        found[name] = printed.getvalue()
    return found


def test_every_option_of_every_command_is_in_the_reference():
    text = site().commands_page()
    sections = dict(
        zip(*[iter(re.split(r"^## monge (\w+)$", text, flags=re.M)[1:])] * 2, strict=True)
    )
    shared = text.partition("\n## ")[0]
    assert set(sections) == set(commands())
    for name, section in sections.items():
        assert section.split("\n\n")[1] == f"{summary(commands()[name])}."
        options = set(
            re.findall(r"(?<![\w-])--?[a-z][\w-]*", helps()[name].partition("Options:")[2])
        )
        assert options, name
        lost = {option for option in options if option not in section and option not in shared}
        assert not lost, f"{name}: {lost}"


def test_every_option_that_pages_name_is_there():
    """In prose, where it is code; options of commands that are named with it belong to them."""
    options = {name: set(re.findall(r"--[a-z][\w-]*", each)) for name, each in helps().items()}
    everywhere = set().union(*options.values())
    for page in PAGES:
        for text in re.findall(r"`([^`\n]*--[a-z][^`\n]*)`", BLOCK.sub("", page.read_text())):
            if text.startswith(("--", "monge ", *commands())):
                word = text.removeprefix("monge ").split()[0]
                known = options.get(word, everywhere)
                lost = set(re.findall(r"(?<!\S)--[a-z][\w-]*", text)) - known
                assert not lost, f"{page.name}: {text}"


def test_text_of_tables_and_statements_is_shown_as_it_is():
    assert site().cell("`a|b` or c|d") == "`a|b` or c\\|d"
    text = site().identities_page()
    assert "&lt;u, v&gt;" in text
    assert not re.search(r"<[a-zA-Z]", text.replace("x\\_o<d", "").replace("x\\_<", ""))


def test_every_model_has_a_page_with_its_settings():
    made = site().generated()
    for entry in registry.entries():
        assert f"models/{entry.name}.md" in made
    page = site().model_page(registry.describe("latent.vae"))
    fields = registry.find("latent.vae").Config.__dataclass_fields__
    assert all(f"`{name}`" in page for name in fields)
    assert "posterior" in page


def test_pictures_of_models_are_small_and_have_their_captions():
    folder = ROOT / "docs" / "gallery"
    names = {entry.name for entry in registry.entries()}
    pictures = {file.stem for file in folder.glob("*.png")}
    assert pictures == {file.stem for file in folder.glob("*.json")}
    assert pictures <= names
    assert sum(file.stat().st_size for file in folder.iterdir()) < 900_000
    for name in pictures:
        about = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        page = site().gallery_section(name)
        assert f"(../gallery/{name}.png)" in page
        assert about["command"] in page
    assert page in site().model_page(registry.describe(name))


def test_names_of_models_in_guides_lead_to_their_pages():
    page = "`made` | [`vae`](x.md) | `prior=gpt`\n```sh\n`rbm`\n```\n`flow.cnf`"
    found = site().link_models(page)
    assert found.startswith("[`made`](../models/autoregressive.made.md) | [`vae`](x.md) | `prior=")
    assert found.endswith("\n```sh\n`rbm`\n```\n[`flow.cnf`](../models/flow.cnf.md)")


def test_every_page_is_in_the_navigation():
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    listed = str(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"])
    for page in PAGES[1:]:
        assert str(page.relative_to(ROOT / "docs")) in listed, page.name
    for name in site().generated():
        assert name in listed or name.startswith("models/"), name


def test_every_command_that_pages_name_is_there():
    top = click.Context(group)
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"^monge (\w+)", text, re.M)) | set(
            re.findall(r"`monge (\w+)", text)
        )
        assert named <= set(group.list_commands(top)), page.name
    for target in re.findall(r"`make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target


def test_names_in_a_column_become_a_list():
    text = "Two ways:\n\none    the first,\n       at length\nother  the second\n\nNo  more.\nEnd."
    expected = "- `one`: the first,\n  at length\n- `other`: the second"
    assert site().with_lists(text).split("\n\n") == ["Two ways:", expected, "No  more.\nEnd."]


def test_cells_of_wide_tables_name_their_columns():
    row = "<tr><td><code>a.long_name</code></td><td>%s</td></tr>"
    table = "<table><thead><tr><th>one</th><th>a <b>b</b></th></tr></thead>%s</table>"
    assert "data" not in site().stackable(table % (row % "short"))
    wide = site().stackable(table % (row % ("word " * 20) + row % ""))
    assert wide.startswith("<table data-stacked>")
    assert wide.count('<td data-label="one">') == wide.count('<td data-label="a b">') == 2
    assert "<code>a.<wbr>long_<wbr>name</code>" in wide


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml")
    with pytest.raises(ValueError):
        site().mathml(r"\nosuchword x", False)
    for page in [*PAGES, *(ROOT / "monge" / "models").rglob("*.py")]:
        for formula in re.findall(r"\$([^$\n]+)\$", page.read_text()):
            assert "<math" in site().mathml(formula, False)
