"""A run is a folder that trains, stops, is killed, resumes and is loaded, and loses nothing."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer

import monge
from monge import registry
from monge.comparison.plan import ComparisonPlan
from monge.comparison.runner import Comparison
from monge.core.errors import DataError, DivergenceError, RunError, UsageError
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.data import loading
from monge.nn.mlp import MLP
from monge.run import run as run_module
from monge.run import saved, setup, storage
from monge.run.run import start
from monge.run.saved import ComputeConfig
from monge.train import checkpoint

QUICK = ("width=16", "depth=1", "train.batch_size=50", "train.eval_every=20")

OWN = '''"""Mean of one number, for tests

Learns the mean of its data; with `bad` its loss is NaN from that step on.
"""
import torch
from monge.core.abilities import HasLikelihood, CanSample, Likelihood
from monge.core.batch import as_batch
from monge.core.config import RunRef
from monge.core.model import Model

class Own(Model, HasLikelihood, CanSample):
    """p(x) = N(x; m, 1)."""
    events = {"real"}

    class Config(Model.Config):
        bad: int = 10**9
        """Step from which the loss is NaN."""
        helper: RunRef | None = None
        """Another run."""

    def __init__(self, config, space, parts=None):
        super().__init__(config, space, parts)
        self.m = torch.nn.Parameter(torch.zeros(space.dims))

    def loss(self, batch):
        value = -self.likelihood(batch).value
        return {"nll": value * float("nan") if batch.step >= self.config.bad else value}

    def likelihood(self, batch, options=None, generator=None):
        x = as_batch(batch).x
        return Likelihood((-0.5 * (x - self.m) ** 2 - 0.9189385).sum(1), "exact")

    @torch.no_grad()
    def sample(self, n, given=None, options=None, generator=None):
        return self.m + torch.randn(n, len(self.m), generator=generator)

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()
'''


@pytest.fixture
def binary():
    rng = np.random.default_rng(0)
    cause = rng.random((400, 1)) < 0.4
    return np.where(cause, rng.random((400, 6)) < 0.8, rng.random((400, 6)) < 0.2)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def weights(run, name):
    return checkpoint.load(run.folder / name)[0]


def same(one, two, name):
    a, b = weights(one, name), weights(two, name)
    assert a.keys() == b.keys()
    return all(torch.equal(a[key], b[key]) for key in a)


def test_six_lines_of_python(binary):
    run = monge.fit("made", binary, *QUICK, budget="60steps")
    assert run.sample(5).shape == (5, 6)
    assert run.sample(5).dtype == bool
    assert run.log_likelihood().kind == "exact"
    assert list(run.history.step) == [20, 40, 60]
    assert run.history.held_out.iloc[-1] > run.history.held_out.iloc[0]
    assert {p.name for p in run.folder.iterdir()} >= {
        "run.json",
        "fields.json",
        "last.safetensors",
        "best.safetensors",
        "log.jsonl",
        "card.md",
    }


def test_the_log_holds_the_learning_rate_of_each_line(binary):
    settings = ("train.lr=5e-4", "train.warmup=0", "train.schedule=constant")
    run = monge.fit("made", binary, *QUICK, *settings, budget="20steps")
    assert [record["lr"] for record in run.log] == [5e-4]


def test_a_loaded_run_is_the_run(binary):
    run = monge.fit("made", binary, *QUICK, budget="20steps")
    again = monge.load(run.folder)
    np.testing.assert_array_equal(again.sample(50, seed=4), run.sample(50, seed=4))
    np.testing.assert_array_equal(
        again.log_likelihood(binary).value, run.log_likelihood(binary).value
    )
    assert again.metadata["seed"] == 0
    assert monge.load(run.folder.name).folder == storage.home() / run.folder.name


def test_same_seed_same_weights_other_seed_others(binary):
    runs = [monge.fit("made", binary, *QUICK, budget="5steps", seed=s) for s in (0, 0, 1)]
    assert [r.folder.name for r in runs] == ["made-array", "made-array-2", "made-array-3"]
    assert same(runs[0], runs[1], "last.safetensors")
    assert not same(runs[0], runs[2], "last.safetensors")


def test_resumed_equals_unbroken(binary):
    """25 steps, then 33, then 60, against 60 at once: the same to the last bit."""
    whole = monge.fit("made", binary, *QUICK, "train.ema_decay=0.9", budget="60steps")
    parts = start("made", binary, *QUICK, "train.ema_decay=0.9")
    for budget in ("25steps", "33steps", "+27steps"):
        for _ in parts.train(budget):
            pass
    assert same(whole, parts, "last.safetensors")
    assert same(whole, parts, "best.safetensors")
    counters = [checkpoint.about(r.folder / "last.safetensors") for r in (whole, parts)]
    assert [each["step"] for each in counters] == [60, 60]
    assert counters[0]["best"] == counters[1]["best"]
    assert list(parts.history.step.drop_duplicates()) == [20, 25, 33, 40, 60]


def test_leaving_the_loop_keeps_what_was_done(binary):
    run = start("made", binary, *QUICK)
    for progress in run.train("1000steps"):
        if progress.step >= 40:
            break
    assert checkpoint.about(run.folder / "last.safetensors")["step"] == 40
    assert run.sample(2).shape == (2, 6)


def test_nothing_is_overwritten(binary, tmp_path):
    monge.fit("made", binary, *QUICK, budget="1steps", out=tmp_path / "mine")
    with pytest.raises(RunError, match=r"mine.*--out.*--resume"):
        monge.fit("made", binary, *QUICK, budget="1steps", out=tmp_path / "mine")


def test_divergence_keeps_the_last_good_weights(own):
    x = np.random.default_rng(0).normal(3, 1, (200, 2))
    run = start(own, x, "bad=45", "train.batch_size=50", "train.eval_every=20", "train.lr=0.1")
    with pytest.raises(DivergenceError, match=r"'nll'.*'model'.*nan.*\b45\b"):
        list(run.train("1000steps"))
    assert checkpoint.about(run.folder / "best.safetensors")["stopped"] == "diverged"
    assert torch.isfinite(weights(run, "best.safetensors")["m"]).all()
    assert weights(run, "best.safetensors")["m"].mean() > 0.5


def test_a_user_model_with_a_submodel(own, binary):
    other = monge.fit("made", binary, *QUICK, budget="2steps")
    x = np.random.default_rng(0).normal(3, 1, (100, 2))
    run = monge.fit(own, x, f"helper={other.folder}", "train.lr=0.1", budget="200steps")
    assert run.model.parts["helper"].space.dims == 6
    assert not any(p.requires_grad for p in run.model.parts["helper"].parameters())
    assert (run.folder / "parts" / "helper" / "run.json").is_file()
    for path in sorted(other.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert monge.load(run.folder).sample(3).shape == (3, 2)


def test_a_folder_cannot_run_code(own, binary, tmp_path, monkeypatch):
    """A model file that only a run folder names is not imported."""
    x = np.random.default_rng(0).normal(3, 1, (100, 2))
    run = monge.fit(own, x, budget="2steps")
    trap = tmp_path / "trap.py"
    trap.write_text(OWN + f"\nopen({str(tmp_path / 'sprung')!r}, 'w')\n")
    metadata = run.folder / "run.json"
    metadata.write_text(metadata.read_text().replace(own, str(trap)))
    with pytest.raises(RunError, match=r"trap\.py.*MONGE_MODELS="):
        monge.load(run.folder).model  # noqa: B018
    assert not (tmp_path / "sprung").exists()
    metadata.write_text(metadata.read_text().replace("user/own.", "user/trap."))
    monkeypatch.setenv("MONGE_MODELS", str(trap))
    assert monge.load(run.folder).sample(3).shape == (3, 2)
    assert (tmp_path / "sprung").exists()


def test_a_config_object_is_used_unchanged(binary):
    from monge.models.autoregressive.made import MADE

    run = monge.fit(MADE.Config(width=7, depth=1), binary, budget="1steps")
    assert run.config.width == 7
    assert run.metadata["model"] == "autoregressive.made"


def test_a_config_object_of_a_user_file_is_used_unchanged(own):
    config = registry.find(own).Config(bad=7)
    run = monge.fit(config, np.random.default_rng(0).normal(3, 1, (100, 2)), budget="2steps")
    assert run.metadata["config"]["is"] == "user/own.Own"
    assert run.metadata["model"] == own
    assert monge.load(run.folder).config == config


def test_a_config_that_is_no_model_is_refused(binary):
    with pytest.raises(UsageError, match="net/mlp"):
        monge.fit(MLP.Config(), binary, budget="1steps")
    with pytest.raises(UsageError, match="train/settings"):
        monge.fit(TrainConfig(), binary, budget="1steps")


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (np.random.default_rng(0).normal(size=(60, 3)), (60, 3)),
        (torch.rand(60, 2), (60, 2)),
        (pd.DataFrame({"a": np.arange(60.0) / 7, "b": ["x", "y", "z"] * 20}), (60, 2)),
        ((np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2), (60, 3)),
        (torch.utils.data.TensorDataset(torch.rand(60, 2), torch.arange(60) % 3), (60, 2)),
        ([[float(i), i / 3] for i in range(60)], (60, 2)),
    ],
)
def test_data_types_of_python(data, shape):
    run = monge.fit("made", data, "width=8", budget="2steps")
    assert np.asarray(run.sample(shape[0])).shape == shape


def test_columns_come_back_as_they_were():
    frame = pd.DataFrame(
        {
            "age": np.arange(200) % 70,
            "name": ["ann", "bob", "cy", "di"] * 50,
            "ok": [True, False] * 100,
            "size": np.linspace(0, 1, 200) ** 2,
        }
    )
    run = monge.fit("made", frame, "width=16", budget="20steps")
    new = run.sample(30)
    assert list(new.columns) == list(frame.columns)
    assert new.dtypes.astype(str).to_list() == frame.dtypes.astype(str).to_list()
    assert set(new.name) <= set(frame.name)


def test_changed_data_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    frame = pd.DataFrame({"a": np.arange(50) / 3, "b": np.arange(50) % 7 / 2})
    frame.to_csv(path, index=False)
    run = monge.fit("made", path, "width=8", budget="2steps")
    frame.loc[3, "a"] = 99.0
    frame.to_csv(path, index=False)
    again = monge.load(run.folder)
    with pytest.raises(RunError, match=r"t\.csv"):
        list(again.train("5steps"))
    assert len(again.log_likelihood(path).value) == 50
    assert again.sample(2).shape == (2, 2)


def test_damaged_folders_are_reported(binary):
    run = monge.fit("made", binary, *QUICK, budget="2steps")
    metadata = run.folder / "run.json"
    text = metadata.read_text()
    metadata.write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(RunError, match=r"run\.json.* 3\b"):
        monge.load(run.folder)
    metadata.write_text(text.replace('"format": 2', '"format": 1'))
    with pytest.raises(RunError, match=r"run\.json.*\b1\b"):
        monge.load(run.folder)
    metadata.write_text("[1]")
    with pytest.raises(RunError, match=r"run\.json.*\[1\]"):
        monge.load(run.folder)
    metadata.write_text("[" * 100_000)
    with pytest.raises(RunError, match=r"run\.json"):
        monge.load(run.folder)
    metadata.write_text(text[:50])
    with pytest.raises(RunError, match=r"run\.json"):
        monge.load(run.folder)
    metadata.write_text(text.replace('"width": 16', '"width": 17'))
    with pytest.raises(RunError, match=r"best\.safetensors.*run\.json"):
        monge.load(run.folder).model  # noqa: B018
    tampered = json.loads(text)
    tampered["config"]["is"] = "os:system"
    metadata.write_text(json.dumps(tampered))
    with pytest.raises(RunError, match=r"run\.json: .*'os:system'"):
        monge.load(run.folder).model  # noqa: B018
    tampered["config"] = tampered["space"]
    metadata.write_text(json.dumps(tampered))
    with pytest.raises(RunError, match=r"run\.json: .*data/space"):
        monge.load(run.folder).model  # noqa: B018
    del tampered["config"]
    metadata.write_text(json.dumps(tampered))
    with pytest.raises(RunError, match=r"run\.json .*config"):
        monge.load(run.folder).model  # noqa: B018
    with pytest.raises(RunError, match=r"'made-aray'.*made-array"):
        monge.load("made-aray")


def test_a_runs_folder_that_cannot_be_written(binary, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MONGE_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(RunError, match=r"file/runs"):
        monge.fit("made", binary, budget="1steps")


def test_a_refusal_names_few_of_many_models():
    with pytest.raises(DataError) as refused:
        registry.check_compatible("d3pm", registry.find("d3pm"), Space(kind="real", shape=(4,)))
    named = re.findall(r"[a-z]+\.[a-z_]+", str(refused.value))
    assert len(named) == registry.FEW_SUGGESTED
    assert all(name.startswith("diffusion.") for name in named)


def test_refusals_name_the_remedy(binary):
    with pytest.raises(DataError, match=r"gaussian.*\b3\b"):
        monge.fit("gaussian", (np.arange(60) % 3).astype(str), budget="1steps")
    holes = pd.DataFrame({"a": [1.5, None, 2.0, 4.5] * 10, "b": np.arange(40) / 7})
    with pytest.raises(
        DataError,
        match=r"made.*data\.missing=drop.*baseline\.\S+, .*latent\.vae",
    ):
        monge.fit("made", holes, "data.missing=ignore", budget="1steps")
    with pytest.raises(UsageError, match=r"sample\.cached=false"):
        monge.fit("made", binary, "sample.cached=false", budget="1steps")
    with pytest.raises(UsageError, match="tpu"):
        monge.fit("made", binary, budget="1steps", compute=ComputeConfig(device="tpu"))


def write_texts(path, name):
    """A table of a number and two columns of text, the second with this name."""
    vocabulary = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"])
    rng = np.random.default_rng(0)
    texts = [[" ".join(row) for row in vocabulary[rng.integers(0, 8, (150, 8))]] for _ in range(2)]
    pd.DataFrame({"x": rng.normal(size=150), "first": texts[0], name: texts[1]}).to_csv(
        path, index=False
    )


@pytest.mark.parametrize("name", ["../../other/run", "comment/notes", "x" * 300, ".."])
def test_columns_name_no_files(tmp_path, name):
    write_texts(tmp_path / "t.csv", name)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("another's")
    run = monge.fit(
        "gaussian",
        tmp_path / "t.csv",
        "data.vocabulary=300",
        budget="5steps",
        out=tmp_path / "runs" / "mine",
    )
    assert (tmp_path / "other" / "run.json").read_text() == "another's"
    files = sorted((run.folder / "tokens").iterdir())
    assert [path.name for path in files] == ["0.json", "1.json"]
    assert [json.loads(path.read_text())["field"] for path in files] == ["first", name]
    assert len(monge.load(run.folder).sample(3)) == 3
    assert monge.load(run.folder).view.selection.schema.field(name).codec.unit == "bpe"


def test_a_nul_byte_in_a_column_name_is_refused(tmp_path):
    write_texts(tmp_path / "t.csv", "a\0b")
    with pytest.raises(DataError, match=r"t\.csv, line 1"):
        start("gaussian", tmp_path / "t.csv", out=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_fit_builds_its_model_and_opens_its_data_once(binary, monkeypatch):
    counts = {"model": 0, "data": 0}
    build, opened = run_module.build, loading.open

    def counted_build(*args):
        counts["model"] += 1
        return build(*args)

    def counted_open(*args, **options):
        counts["data"] += 1
        return opened(*args, **options)

    monkeypatch.setattr(run_module, "build", counted_build)
    monkeypatch.setattr(saved, "build", counted_build)
    monkeypatch.setattr(setup, "open_data", counted_open)
    monkeypatch.setattr(saved, "open_data", counted_open)
    run = start("made", binary)
    for _ in run.train("3steps"):
        pass
    assert counts == {"model": 1, "data": 1}


@pytest.mark.parametrize(("tokens", "key"), [("bpe", "tokenizer"), ("words", "symbols")])
def test_the_file_of_tokens_holds_the_vocabulary(tmp_path, tokens, key):
    write_texts(tmp_path / "t.csv", "second")
    run = start("gaussian", tmp_path / "t.csv", f"data.tokens={tokens}", "data.vocabulary=300")
    found = json.loads((run.folder / "tokens" / "1.json").read_text())
    codec = run.view.selection.schema.field("second").codec
    if key == "symbols":
        assert tuple(found[key]) == codec.symbols
        return
    reader = Tokenizer.from_str(json.dumps(found[key]))
    expected = codec.codes(["alpha beta"], str)[0].tolist()[:-1]
    assert reader.encode("alpha beta").ids == expected


@pytest.mark.parametrize(
    "title",
    [
        "vae-../../x",
        "..",
        ".",
        "",
        "/",
        "a/b",
        "vae-a\0b",
        "a\nb",
        "x" * 300,
        "é" * 300,
        "\U0001f600" * 300,
        "-" + "\udcff",
    ],
)
def test_a_title_never_leads_out_of_the_runs(tmp_path, monkeypatch, title):
    monkeypatch.setenv("MONGE_RUNS", str(tmp_path / "runs"))
    folder = storage.default_path(title)
    assert folder.parent == tmp_path / "runs"
    assert folder.name[0] != "."
    made = storage.create(folder, True, {"run.json": {}}, {})
    again = storage.create(folder, True, {"run.json": {}}, {})
    assert made == folder
    assert again.name == f"{folder.name}-2"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        [made.name, again.name]
    )


def test_long_titles_that_differ_at_their_end_stay_apart():
    assert storage.default_path("x" * 300 + "a") != storage.default_path("x" * 300 + "b")
    assert storage.default_path("vae-digits+resize8").name == "vae-digits+resize8"


def test_data_with_the_longest_name_a_file_may_have(tmp_path):
    path = tmp_path / f"{'k' * 250}.csv"
    pd.DataFrame({"x": np.arange(60) % 7, "y": np.arange(60) % 5 + 0.5}).to_csv(path, index=False)
    run = start("gaussian", path)
    assert run.folder.parent == storage.home()
    plan = ComparisonPlan(str(path), (), ("baseline.gaussian",), "5steps")
    assert Comparison.create(plan).folder.parent == storage.home()


def test_an_empty_budget_is_refused():
    with pytest.raises(UsageError, match="budget"):
        start("gaussian", "moons", budget="")


def test_a_table_in_which_nothing_is_found_gives_the_weights_of_a_plain_one(tmp_path):
    """No flag, atom, bound, key or derived column; a bound changes the weights."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 2))
    frame = pd.DataFrame({"a": z[:, 0], "b": z.sum(1), "name": rng.choice(["x", "y", "z"], 300)})

    def weights(frame, *settings):
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run = monge.fit(
            "made", frame, "width=8", *settings, budget="5steps", out=out, progress=False
        )
        return run.model.state_dict()

    def same(frame):
        found, plain = weights(frame), weights(frame, "data.space=plain")
        return found.keys() == plain.keys() and all(
            torch.equal(found[name], plain[name]) for name in plain
        )

    assert same(frame)
    assert not same(frame.assign(a=frame["a"].abs()))
