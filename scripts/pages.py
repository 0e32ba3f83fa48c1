"""What mkdocs.yml cannot say: pages made from the code, and formulas as MathML.

The start page is README.md; CHANGELOG.md and CONTRIBUTING.md are pages too, and so are tutorials
with what they printed. Models, commands and identities are read from the code, so that no page
can be out of date. `python scripts/pages.py`
prints the names of the generated pages.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape, unescape
from itertools import cycle
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from monge import registry  # noqa: E402
from monge.cli.main import commands, summary  # noqa: E402
from monge.cli.main import monge as group  # noqa: E402
from monge.verify.framework import listed  # noqa: E402
from monge.verify.mutants import MUTANTS  # noqa: E402

WIDE = "---\nhide: [toc]\n---\n"
"""Before a page that has no list of its headings, so that its text is wider."""
DOTTED = re.compile(r"(?<=\w)([._=,])(?=\w)")
"""Where a long name in a table may be broken."""
NARROW = 60
"""Characters of a row of a table that fit on a telephone."""
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
SHOWN_DEFAULTS = ("iris", "digits")
"""Data whose default settings a model's page shows."""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; empty if there are no rows."""
    lines = ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
    if not lines:
        return ""
    top = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*top, *lines]) + "\n"


def cell(value: Any) -> str:
    """Text of a cell, which a bar in it does not end; in code a bar is not marked."""
    text = " ".join(str(value).split())
    return re.sub(r"(`[^`]*`)|\|", lambda match: match[1] or "\\|", text)


def code(value: Any) -> str:
    """Text set as code; nothing stays nothing."""
    return f"`{value}`" if str(value) else ""


# models


def with_lists(text: str) -> str:
    """Names with what they mean in a second column, as docstrings have them, become a list."""
    parts = text.split("\n\n")
    for i, part in enumerate(parts):
        if all(re.match(r"\w+ {2,}\S| {4}", line) for line in part.splitlines()):
            part = re.sub(r"^ +", "  ", part, flags=re.M)
            parts[i] = re.sub(r"^(\w+) {2,}", r"- `\1`: ", part, flags=re.M)
    return "\n\n".join(parts)


def model_page(entry: registry.Entry) -> str:
    """One model: its theory, what it takes and can do, its settings and its defaults."""
    from monge.cli.models import field_rows, option_rows, unlabelled

    owner = registry.find(entry.name)
    theory = inspect.getdoc(sys.modules[owner.__module__]) or ""
    facts = [
        ("data", ", ".join(entry.events)),
        ("conditions", ", ".join(entry.givens) or "none"),
        ("missing values", "supported" if entry.supports_missing else "not supported"),
        ("rows without a label", unlabelled(entry)),
        ("lengths", "variable" if entry.supports_variable_length else "equal for all rows"),
        ("can", ", ".join(entry.abilities)),
    ]
    parts = [
        f"# {entry.name}",
        f"{entry.summary}.",
        table(("", ""), facts),
        f"```\nmonge models {entry.name}\nmonge fit {entry.name} DATA\n```",
        gallery_section(entry.name),
        with_lists(theory.partition("\n")[2].strip()),
        "## Definition\n\n" + with_lists(inspect.getdoc(owner) or ""),
    ]
    if owner.presets:
        presets = [(code(f"preset={name}"), text) for name, text in owner.presets.items()]
        parts += ["## Presets", table(("preset", "what it chooses"), presets)]
    for title, fields in (
        ("settings", list(field_rows(owner.Config, ""))),
        *option_rows(owner, False),
    ):
        rows = [(code(f["field"]), code(f["default"]), explained(f)) for f in fields]
        if rows:
            parts += [f"## {title.capitalize()}", table(("setting", "default", ""), rows)]
    chosen = default_rows(entry)
    if chosen:
        head = "Chosen for the data at hand; for these built-in sets:"
        parts += ["## Defaults", head, table(("setting", *SHOWN_DEFAULTS), chosen)]
    parts += [
        "Training settings (`train.*`) are the same for all models: see [training](training.md)."
    ]
    return "\n\n".join(part for part in parts if part)


def gallery_section(name: str) -> str:
    """The picture of a short run, if `make gallery` made one, and what it shows."""
    file = ROOT / "docs" / "gallery" / f"{name}.json"
    if not file.exists():
        return ""
    about = json.loads(file.read_text(encoding="utf-8"))
    held, left = about["held_out"], about["left"]
    caption = f"{left[0].upper()}{left[1:]}"
    if about["curve"]:
        caption += "; on the right, the held-out metric during training"
    data = f" (DATA: {about['data']})" if about["data"] else ""
    return (
        f"![{caption}](../gallery/{name}.png)\n\n"
        f"{caption}. A short run, not the best the model can do: `{about['command']}`{data}; "
        f"held out {held['value']:.4g} ({held['kind']}) at step {about['best']}, the best."
    )


def explained(field: dict[str, Any]) -> str:
    choices = ", ".join(code(choice) for choice in field["choices"])
    return f"{field['help']} One of {choices}." if choices else field["help"]


def default_rows(entry: registry.Entry) -> list[tuple[str, ...]]:
    """Settings that the model chooses for some data, where they are not those of every model."""
    from monge.core.config import Config, Overrides
    from monge.core.errors import MongeError
    from monge.run.setup import resolve_setup

    def flat(config: Config, head: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in config.__dataclass_fields__:
            value = getattr(config, name)
            nested = (
                flat(value, f"{head}{name}.")
                if isinstance(value, Config)
                else {head + name: value}
            )
            found |= nested
        return found

    columns: list[dict[str, Any]] = []
    for data in SHOWN_DEFAULTS:
        target = ["label"] if entry.is_predictor else None
        try:
            setup = resolve_setup(
                entry.name, data, Overrides.parse(()), None, (), target, 0, False
            )
        except MongeError:
            columns.append({})
            continue
        columns.append(flat(setup.config) | flat(setup.train_config, "train."))
    names = dict.fromkeys(name for column in columns for name in column)
    usual = flat(training_config(), "train.")
    return [
        (code(name), *(code(column.get(name, "")) for column in columns))
        for name in names
        if any(column.get(name, usual.get(name)) != usual.get(name) for column in columns)
    ]


def training_config() -> Any:
    from monge.core.train_config import TrainConfig

    return TrainConfig()


def training_page() -> str:
    from monge.cli.models import field_rows
    from monge.core.train_config import TrainConfig

    rows = [
        (code(f["field"]), code(f["default"]), explained(f))
        for f in field_rows(TrainConfig, "train.")
    ]
    settings = table(("setting", "default", ""), rows)
    return f"# Training settings\n\nThe same for all models.\n\n{settings}"


def models_page() -> str:
    lines = ["# Models", "What each takes and can do; the list is read from the source files."]
    for family in dict.fromkeys(entry.family for entry in registry.entries()):
        rows = [
            (f"[{e.name.partition('.')[2]}]({e.name}.md)", e.summary, ", ".join(e.events))
            for e in registry.entries()
            if e.family == family
        ]
        lines += [f"## {family.capitalize()}", table(("model", "what it is", "data"), rows)]
    return "\n\n".join(lines)


# commands


def commands_page() -> str:
    """Every command with every argument and option, as `--help` shows them."""
    found = {name: command_records(name) for name in commands()}
    shared = [record for record in found["fit"] if all(record in each for each in found.values())]
    parts = [
        "# Commands",
        "Exit codes: 0 done, 1 the work failed, 2 wrong usage. Settings are `key=value`. Every "
        "command takes:",
        table(("option", ""), [(code(names), text) for names, text in shared]),
    ]
    return "\n\n".join([*parts, *(command_section(name, shared) for name in commands())])


def command_of(name: str) -> tuple[click.Command, click.Context]:
    top = click.Context(group, info_name="monge")
    command = group.get_command(top, name)
    assert command is not None
    return command, click.Context(command, info_name=name, parent=top)


def command_records(name: str) -> list[tuple[str, str]]:
    """The names of each argument and option with its help."""
    command, context = command_of(name)
    records = [param.get_help_record(context) for param in command.get_params(context)]
    return [record for record in records if record]


def command_section(name: str, shared: Sequence[tuple[str, str]]) -> str:
    command, context = command_of(name)
    options = [each for each in command_records(name) if each[1] and each not in shared]
    usage = " ".join(["monge", name, *command.collect_usage_pieces(context)])
    return "\n\n".join(
        [
            f"## monge {name}",
            f"{summary(commands()[name])}.",
            f"```\n{usage}\n```",
            help_text(command.help or ""),
            table(("option", ""), [(code(names), text) for names, text in options]),
        ]
    )


def help_text(text: str) -> str:
    """Paragraphs of help; those that click must not wrap are code."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```\n{inspect.cleandoc(part[2:])}\n```" if part.startswith("\b") else part
        for part in parts
    )


# identities


def identities_page() -> str:
    """Every identity with its statements, sources, what it examines and the faults it is shown to
    catch, and the common errors it rejects."""
    faults: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        faults.setdefault(mutant.check, []).append(mutant.name)
    found = sorted(listed(), key=lambda each: (each.id[0] != "X", int(each.id[1:])))
    lines = [
        "# Identities",
        "Statements of the theory that run: `monge verify X58` checks one on small models, "
        "`monge verify RUN` those that apply to a model you trained. Each has a residual and a "
        "tolerance, names the code of the library that it examines, and the faults that "
        "`monge verify --mutants` injects to show that it can fail.",
    ]
    last = ""
    for each in found:
        if each.id[0] == "R" and not last.startswith("R"):
            lines += [
                "## Common errors",
                "Controls: the tolerance that accepts the correct statement rejects these.",
            ]
        if each.id != last:
            lines.append(f"### {each.id} {{ #{each.id.lower()} }}")
        statement = escape(each.statement, quote=False)  # <u, v> is no element of the page
        statement = statement.replace("_", "\\_").replace("*", "\\*")
        subject = ", ".join(each.examines).replace("_", "\\_") or "models"
        caught = f" Fails under: {', '.join(faults[each.name])}." if each.name in faults else ""
        lines.append(f"{statement}. *{each.group}*; {each.source}. Examines: {subject}.{caught}")
        last = each.id
    return "\n\n".join(lines)


# tutorials


def cells(script: str) -> list[tuple[bool, str]]:
    """The parts of a script in the percent format of jupytext: whether it is code, and text."""
    found = []
    for part in re.split(r"^# %%", script, flags=re.M)[1:]:
        head, _, text = part.partition("\n")
        is_code = "[markdown]" not in head
        found.append((is_code, text.strip() if is_code else re.sub(r"^# ?", "", text, flags=re.M)))
    return [(is_code, text.strip()) for is_code, text in found]


def tutorial_page(path: Path) -> str:
    """A tutorial with what each of its cells printed and drew when it was last run in full."""
    record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    outcomes, parts = iter(record["cells"]), []
    for is_code, text in cells(path.read_text(encoding="utf-8")):
        if not is_code:
            parts.append(text)
            continue
        outcome = next(outcomes)
        parts.append(f"```python\n{text}\n```")
        if outcome["printed"]:
            parts.append(f"```text\n{outcome['printed']}\n```")
        parts += [f"![What this draws](pictures/{name})" for name in outcome["pictures"]]
    run = (
        f"`docs/tutorials/{path.name}`, with what it printed and drew in a run that took "
        f"{record['seconds']} seconds of one core; `make tutorials` repeats it."
    )
    return "\n\n".join([WIDE + parts[0], run, *parts[1:]])


# pages from files of the repository


def repository_page(name: str) -> str:
    """A file beside docs/; its links lead from docs/ on."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for file, page in {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}.items():
        text = text.replace(f"]({file}", f"]({page}")
    return text


def generated() -> dict[str, Callable[[], str]]:
    """Every page that is not a file of docs/, by its path, and what writes it."""
    pages: dict[str, Callable[[], str]] = {
        "index.md": lambda: WIDE + repository_page("README.md"),
        "changes.md": partial(repository_page, "CHANGELOG.md"),
        "contributing.md": partial(repository_page, "CONTRIBUTING.md"),
        "commands.md": commands_page,
        "identities.md": identities_page,
        "models/index.md": models_page,
        "models/training.md": training_page,
    }
    pages |= {f"tutorials/{p.stem}.md": partial(tutorial_page, p) for p in TUTORIALS}
    return pages | {f"models/{e.name}.md": partial(model_page, e) for e in registry.entries()}


# hooks of mkdocs


def on_config(config: Any) -> Any:
    """A page for each model, by family."""
    models = next(part["Models"] for part in config.nav if "Models" in part)
    families = dict.fromkeys(entry.family for entry in registry.entries())
    models += [
        {
            family.capitalize(): [
                {e.name.partition(".")[2]: f"models/{e.name}.md"}
                for e in registry.entries()
                if e.family == family
            ]
        }
        for family in families
    ]
    models.append({"Training settings": "models/training.md"})
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, write in generated().items():
        files.append(File.generated(config, path, content=write()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Identities named in the theory lead to their statements, models in guides to their pages."""
    if page.file.src_uri.startswith("guides/"):
        return link_models(markdown)
    if page.file.src_uri != "theory.md":
        return markdown
    return "\n".join(
        re.sub(r"\b(X\d+)\b", lambda m: f"[{m[1]}](identities.md#{m[1].lower()})", line)
        if line.startswith("|")
        else line
        for line in markdown.splitlines()
    )


def link_models(markdown: str) -> str:
    """Names of models set as code become links, but for those in blocks of code and in links."""
    names = [entry.name for entry in registry.entries()]
    pages = {name.partition(".")[2]: name for name in names} | {name: name for name in names}

    def link(match: re.Match[str]) -> str:
        page = pages.get(match[1])
        return f"[{match[0]}](../models/{page}.md)" if page else match[0]

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.S | re.M)
    parts[::2] = [re.sub(r"(?<![\[`])`([\w.]+)`(?![\]`])", link, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML, which browsers typeset without a script; tables of sentences as lists
    where the screen is narrow."""
    html = re.sub(
        r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>',
        lambda match: mathml(unescape(match[2]), match[1] == "div"),
        html,
        flags=re.S,
    )
    return re.sub(r"<table>.*?</table>", lambda match: stackable(match[0]), html, flags=re.S)


def stackable(table: str) -> str:
    """A table with the heading of its column at every cell, if it is too wide for a telephone:
    docs/site.css then shows its cells below each other."""
    heads = [plain(each) for each in re.findall(r"<th[^>]*>(.*?)</th>", table, re.S)]
    rows = [re.findall(r"<td.*?</td>", row, re.S) for row in table.split("<tr>")]
    longest = [
        max((len(plain(row[i])) for row in rows if i < len(row)), default=0)
        for i in range(len(heads))
    ]
    if sum(longest) < NARROW:
        return table
    columns = cycle(heads)
    table = re.sub(r"<code>.*?</code>", lambda match: DOTTED.sub(r"\1<wbr>", match[0]), table)
    labelled = re.sub(r"<td\b", lambda match: f'<td data-label="{escape(next(columns))}"', table)
    return labelled.replace("<table>", "<table data-stacked>", 1)


def plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html)).strip()


def mathml(formula: str, display: bool) -> str:
    from latex2mathml.converter import convert

    formula = re.sub(r"\\arg\\(max|min)", r"\\text{arg \1}", formula.strip())
    found = convert(formula, display="block" if display else "inline")
    if unknown := re.search(r">[^<]*(\\\w+)", found):
        raise ValueError(
            f"expected a formula that MathML expresses, found {unknown[1]}: {formula}"
        )
    # a hat or a tilde as an accent would lie on its letter, unless a font knows their heights
    found = found.replace(' accent="true"', "").replace("<mo>&#x0005E;</mo>", "<mo>&#x002C6;</mo>")
    return found if display else f'<span class="formula">{found}</span>'


if __name__ == "__main__":
    print(*generated(), sep="\n")
