"""Text from the command line: fit, prompt, score, translate, evaluate, explain."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from monge.cli.main import attempt
from monge.core.errors import DataError
from monge.run import run as runs
from monge.run.text import continue_text, translate

LINES = [
    f"{name}{end}"
    for name in ("an", "be", "ka", "mi", "so")
    for end in ("na", "lla", "ra", "ta", "nnie", "sa", "li", "do")
] * 3
SOURCE = [f"{a} {b}" for a in ("rot", "blau", "gelb") for b in ("Haus", "Hund", "Auto")] * 6
TRANSLATIONS = {
    "rot": "red",
    "blau": "blue",
    "gelb": "yellow",
    "Haus": "house",
    "Hund": "dog",
    "Auto": "car",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Three runs: lines, running text, pairs."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    (folder / "verses.txt").write_text("the cat sat on the mat.\n\nthe dog sat too.\n\n" * 40)
    target = [" ".join(TRANSLATIONS[word] for word in text.split()) for text in SOURCE]
    (folder / "pairs.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in zip(SOURCE, target, strict=True))
    )
    small = ("net.width=16", "net.depth=1", "train.warmup=5", "train.lr=0.02")
    runs.fit("gpt", folder / "lines.txt", *small, budget="30steps", out=folder / "lines")
    runs.fit(
        "rnn",
        folder / "verses.txt",
        "net.width=16",
        "net.depth=1",
        "data.context=32",
        "train.lr=0.02",
        budget="30steps",
        out=folder / "verses",
    )
    runs.fit(
        "seq2seq",
        folder / "pairs.tsv",
        "net.width=32",
        "data.tokens=words",
        "dropout=0",
        "train.batch_size=16",
        "train.lr=0.02",
        "train.warmup=5",
        budget="120steps",
        out=folder / "pairs",
    )
    return folder


def output(capsys, *arguments: object) -> str:
    assert attempt(list(map(str, arguments))) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal(capsys, *arguments: object) -> str:
    assert attempt(list(map(str, arguments))) != 0
    return capsys.readouterr().err


def test_a_prompt_is_continued(home, capsys):
    text = output(capsys, "sample", home / "lines", "--prompt", "an")
    assert text.startswith("an")
    assert len(text.strip().split("\n")) == 1
    many = output(capsys, "sample", home / "lines", "--prompt", "ka", "-n", "5", "--json")
    samples = json.loads(many)["samples"]
    assert len(samples) == 5
    assert all(sample.startswith("ka") for sample in samples)
    assert len(output(capsys, "sample", home / "lines").strip().split("\n")) == 16
    greedy = [
        output(capsys, "sample", home / "lines", "--prompt", "s", "top_k=1", "--seed", seed)
        for seed in (1, 2)
    ]
    assert greedy[0] == greedy[1]
    output(capsys, "sample", home / "lines", "-o", home / "out.txt", "-n", "3")
    assert len((home / "out.txt").read_text().split()) == 3


@pytest.mark.parametrize(("setting", "said"), [("temperature=0.5", True), ("steps=4", False)])
def test_text_of_another_distribution_is_said_to_be_so(setting, said, home, capsys):
    assert attempt(["sample", str(home / "lines"), setting]) == 0
    assert (setting in capsys.readouterr().err) == said


def test_running_text_continues_beyond_the_context(home, capsys):
    text = output(capsys, "sample", home / "verses", "--prompt", "the cat", "steps=80")
    assert text.startswith("the cat")
    assert len(text.rstrip("\n")) <= 80
    assert len(text) >= 78
    *_, (whole,) = continue_text(runs.load(home / "verses"), "the", 1, ["steps=80"])
    states = [
        state for (state,) in continue_text(runs.load(home / "verses"), "the", 1, ["steps=80"])
    ]
    assert states[-1] == whole
    assert all(len(a) <= len(b) for a, b in itertools.pairwise(states))


def test_a_log_likelihood_is_printed_as_perplexity_and_bits(home, capsys):
    other = home / "other.txt"
    other.write_text("anna\nbella\n")
    printed = json.loads(output(capsys, "score", home / "lines", other, "--json"))
    tokens = len("anna") + len("bella") + 2
    nats = -printed["mean"] * 2 / tokens
    assert printed["perplexity"] == pytest.approx(math.exp(nats))
    assert printed["bits_per_character"] == pytest.approx(nats / math.log(2))
    assert "perplexity" in output(capsys, "score", home / "verses")


def test_sentences_are_translated_and_evaluated(home, capsys, monkeypatch, tmp_path):
    plot = tmp_path / "map.png"
    text = output(capsys, "translate", home / "pairs", "rot Haus", "--attention", plot)
    assert text.split("\n")[0] == "red house"
    assert plot.stat().st_size > 1000
    monkeypatch.setattr("sys.stdin", open_text("gelb Auto\n\nblau Hund\n", tmp_path))
    printed = json.loads(output(capsys, "translate", home / "pairs", "-", "beams=2", "--json"))
    assert printed["translations"] == ["yellow car", "blue dog"]
    found = json.loads(output(capsys, "evaluate", home / "pairs", "--json"))["metrics"]
    assert found["chrf"]["value"] > 90
    assert found["bleu"]["value"] >= 0
    assert found["rouge_l"]["value"] > 90
    assert 0 <= found["word_error_rate"]["value"] < 10
    assert found["perplexity"]["value"] < 3
    assert translate(runs.load(home / "pairs"), ["rot Hund"]) == ["red dog"]


def test_texts_are_translated_in_kind(home):
    run, texts, found = (
        runs.load(home / "pairs"),
        ["rot Hund", "blau Auto"],
        ["red dog", "blue car"],
    )
    (source,) = run.space.given
    column = pd.Series(texts, [7, 9])
    assert run.translate(texts) == found
    assert list(run.translate(np.array(texts, object))) == found
    pd.testing.assert_series_equal(
        run.translate(column), pd.Series(found, [7, 9], name=run.view.event.fields[0].name)
    )
    frame = run.translate(pd.DataFrame({source: column, "more": 1}))
    assert (list(frame.index), list(frame.iloc[:, 0])) == ([7, 9], found)
    with pytest.raises(DataError, match=f"column '{source}' of texts to translate, found a, b"):
        run.translate(pd.DataFrame({"a": texts, "b": texts}))
    with pytest.raises(DataError, match="found nan in row 2"):
        run.translate(pd.Series(["rot Hund", float("nan")]))


def test_texts_of_polars_are_translated_in_kind(home):
    polars = pytest.importorskip("polars")
    run, texts, found = (
        runs.load(home / "pairs"),
        ["rot Hund", "blau Auto"],
        ["red dog", "blue car"],
    )
    column, frame = polars.Series("a", texts), polars.DataFrame({"a": texts})
    assert run.translate(column).to_list() == found
    assert run.translate(frame).to_series().to_list() == found


def open_text(text: str, folder: Path):
    path = folder / "stdin.txt"
    path.write_text(text)
    return path.open()


def test_the_vocabulary_is_saved_in_the_run(home):
    (lines,) = (json.loads(p.read_text()) for p in (home / "lines" / "tokens").iterdir())
    assert lines["field"] == "text"
    assert lines["symbols"][0] == "a"
    pairs = [json.loads(p.read_text()) for p in (home / "pairs" / "tokens").iterdir()]
    assert "<unk>" in next(p for p in pairs if p["field"] == "target")["symbols"]


def test_attention_is_explained_in_six_steps(capsys, tmp_path):
    out = tmp_path / "steps.png"
    text = output(capsys, "explain", "attention", "the cat sat", "-o", out, "--causal")
    assert [f"{n} " in text for n in range(1, 7)] == [True] * 6
    assert out.stat().st_size > 1000
    steps = json.loads(output(capsys, "explain", "attention", "a b", "-o", out, "--json"))["steps"]
    assert [sum(row) for row in steps[3]["A"]] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("sample", "lines", "--prompt", "a" * 40), "40"),
        (("sample", "lines", "--prompt", "ß"), "'ß'"),
        (("sample", "lines", "--prompt", "a", "-o", "x.csv"), ".txt"),
        (("sample", "verses", "--prompt", "the", "steps=no"), "steps=no"),
        (("sample", "lines", "--prompt", "a", "top_p=2"), "top_p"),
        (("translate", "lines", "anna"), "monge fit transformer"),
        (("translate", "pairs", " "), "translate"),
        (("translate", "pairs", "rot", "--attention", "x.txt"), ".png"),
        (("explain", "atention"), "attention"),
        (("explain", "attention", "a " * 20), "20"),
    ],
)
def test_invalid_arguments_are_refused(home, capsys, monkeypatch, arguments, value):
    monkeypatch.chdir(home)
    assert value in refusal(capsys, *arguments)


@pytest.mark.parametrize("name", ["lines", "verses"])
def test_strings_are_read_as_the_text_of_a_run(home, name, tmp_path):
    """Whatever file it was fitted on, and as the same lines in a file are."""
    run = runs.load(home / name)
    known = {"lines": ["anna", "bella", "mido"], "verses": ["the cat sat.", "the mat."]}[name]
    found = run.log_likelihood(known)
    assert list(found.numbers) == list(range(1, len(known) + 1))
    assert np.isfinite(found.value).all()
    if name == "lines":
        (tmp_path / "new.txt").write_text("\n".join(known) + "\n")
        np.testing.assert_array_equal(run.log_likelihood(tmp_path / "new.txt").value, found.value)


def test_pairs_of_strings_are_read_as_those_of_a_run(home):
    run = runs.load(home / "pairs")
    found = run.log_likelihood((["rot Haus", "blau Hund"], ["red house", "blue dog"]))
    assert np.isfinite(found.value).all()
    assert len(found.value) == 2
