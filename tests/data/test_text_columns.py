"""Text beside other fields: columns of a table, captions of images, and models given them."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import monge
from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.data import loading as data

SAID = {"left": -2.0, "right": 2.0}


def rows(n=300, seed=0):
    """Numbers with a sentence that says where they are, in its own words each time."""
    draw = np.random.default_rng(seed)
    place = draw.choice(list(SAID), n)
    words = [
        " ".join(
            [
                *draw.choice(["big", "red", "far", "old"], 2),
                str(where),
                *draw.choice(["one", "two", "now"], draw.integers(1, 4)),
                f"no{row}",
            ]
        )
        for row, where in enumerate(place)
    ]
    x = np.array([SAID[where] for where in place]) + 0.2 * draw.standard_normal(n)
    return pd.DataFrame({"a": x, "b": draw.standard_normal(n), "caption": words})


def test_a_column_of_sentences_is_text_and_no_part_of_the_rows(tmp_path):
    frame = rows()
    frame.to_csv(tmp_path / "said.csv", index=False)
    for source in (data.open(tmp_path / "said.csv"), data.open(frame)):
        assert source.fields["caption"].space.kind == "tokens"
        assert source.view().space.shape == (2,)
        assert any("caption is read as text" in note for note in source.notes)
        assert (
            source.splits["train"].tolist()
            == data.open(frame[["a", "b"]]).splits["train"].tolist()
        )
    view = source.view(given=["caption"])
    shown = view.split("train").batch(torch.arange(3)).given["caption"]
    codec = source.fields["caption"].codec
    assert codec.spell(shown.x[0][: shown.length[0]]) in set(frame["caption"])


def test_what_repeats_is_text_where_the_words_say_so_and_names_otherwise():
    frame = rows().assign(caption=lambda frame: frame["caption"].str.split().str[2])
    assert data.open(frame).fields["caption"].space.kind == "label"
    text = data.open(frame, "sentences=caption", "tokens=words")
    assert text.fields["caption"].space.kind == "tokens"
    assert text.name.endswith("+words")
    with pytest.raises(UsageError, match=r"data\.sentences=captoin.* caption"):
        data.open(frame, "sentences=captoin")
    frame.loc[4, "caption"] = None
    with pytest.raises(DataError, match="'caption', row 5 "):
        data.open(frame, "sentences=caption")


def test_dates_and_identifiers_are_no_sentences():
    n = np.arange(300)
    for column in (
        [f"2020-01-{1 + i % 28:02d} {i % 24:02d}:{i % 60:02d}" for i in n],
        [f"id{i}" for i in n],
    ):
        try:
            fields = data.open(pd.DataFrame({"a": n / 7, "c": column})).fields
        except DataError:
            continue  # told as what it is
        assert "c" not in fields or fields["c"].space.kind != "tokens"


def pictures(folder, n=40):
    folder.mkdir()
    with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "caption", "size"])
        for i in range(n):
            Image.fromarray(np.full((6, 6), 5 * i, np.uint8)).save(folder / f"{i}.png")
            table.writerow([f"{i}.png", f"a grey of {i}", i / 7])
    return folder


def test_a_folder_tells_of_its_pictures(tmp_path):
    source = data.open(pictures(tmp_path / "grey"), "sentences=caption")
    assert {name: field.space.kind for name, field in source.fields.items()} == {
        "image": "levels",
        "caption": "tokens",
        "size": "real",
    }
    batch = source.view(given=["caption", "size"]).split("train").batch(torch.arange(5))
    codec, text = source.fields["caption"].codec, batch.given["caption"]
    for x, row, length, size in zip(
        batch.x, text.x, text.length, batch.given["size"].x, strict=True
    ):
        number = int(x[0, 0, 0]) // 5
        assert codec.spell(row[:length]) == f"a grey of {number}"
        assert float(size) == pytest.approx(number / 7)


def test_a_folder_that_tells_too_little_is_refused(tmp_path):
    folder = pictures(tmp_path / "grey", 12)
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(folder / "stray.png")
    with pytest.raises(DataError, match=r"metadata\.csv .* stray\.png"):
        data.open(folder)
    (folder / "metadata.csv").write_text("name,caption\na,b\nc,d\n", encoding="utf-8")
    with pytest.raises(DataError, match="file_name, only name, caption"):
        data.open(folder)


def test_a_diffusion_law_heeds_a_caption(tmp_path, capsys):
    rows().to_csv(tmp_path / "said.csv", index=False)
    run = tmp_path / "run"
    assert (
        attempt(
            [
                "fit",
                "ddpm",
                str(tmp_path / "said.csv"),
                "--given",
                "caption",
                "net.width=32",
                "net.depth=2",
                "train.batch_size=64",
                "train.lr=5e-3",
                "--budget",
                "60steps",
                "--out",
                str(run),
                "-q",
            ]
        )
        == 0
    )
    found = monge.load(run)
    drawn = {
        where: found.sample(
            40,
            {"caption": found.view.encode_given("caption", f"old red {where} now")},
            "gamma=2",
            "steps=8",
        )["a"].mean()
        for where in SAID
    }
    assert drawn["left"] + 1 < drawn["right"]
    capsys.readouterr()
    assert (
        attempt(["sample", str(run), "--given", "caption=big left one", "-n", "2", "steps=3"]) == 0
    )
    assert capsys.readouterr().out.startswith("a,b\n")
