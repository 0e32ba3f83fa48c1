"""Starting costs little: help, listings and the description of a table never import torch."""

import json
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

import monge

QUICK = [["--help"], ["fit", "--help"], ["models"], ["models", "--json"], ["--version"]]


def run(*arguments, probe="torch"):
    """Run a command line in a new process; whether `probe` was imported, and its output."""
    code = (
        f"import sys; from monge.cli.main import attempt; code = attempt({list(arguments)!r}); "
        f"print({probe!r} in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done, done.stderr.strip().endswith("True")


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_listing_imports_no_torch(arguments):
    done, imported = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not imported


def table(tmp_path):
    """A csv file with names, numbers, dates, a key, empty cells and columns that follow from
    others."""
    rng, n = np.random.default_rng(0), 200
    start = np.datetime64("2020-01-01") + rng.integers(0, 300, n)
    names = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    columns = {
        "id": np.arange(1, n + 1),
        "name": names,
        "code": [{"a": 1, "b": 2, "c": 5}[name] for name in names],
        "start": start,
        "end": start + rng.integers(0, 30, n),
        "size": [f"{x:.2f}" if x > -1 else "" for x in rng.normal(size=n)],
        "same": ["x"] * n,
    }
    rows = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("more", [[], ["--json", "time=none"], ["missing=drop", "rows=50"]])
def test_describing_a_table_imports_no_torch(more, tmp_path):
    done, imported = run("data", str(table(tmp_path)), *more)
    assert done.returncode == 0, done.stderr
    assert "chow_liu" in done.stdout
    assert not imported


def test_sampling_a_table_to_csv_imports_no_pandas(tmp_path):
    monge.fit("chow_liu", str(table(tmp_path)), out=tmp_path / "run")
    new = tmp_path / "new.csv"
    done, imported = run("sample", str(tmp_path / "run"), "-o", str(new), probe="pandas")
    assert done.returncode == 0, done.stderr
    assert new.read_text().startswith("id,name,code,start,end,size,same\n201,")
    assert not imported


@pytest.mark.parametrize("probe", ["sklearn", "scipy", "pandas", "matplotlib", "torch._dynamo"])
def test_a_first_fit_imports_only_what_it_uses(probe, first_fit):
    done, imported = first_fit
    assert done.returncode == 0, done.stderr
    assert probe not in imported


@pytest.fixture(scope="module")
def first_fit(tmp_path_factory):
    """A quiet fit to a built-in data set in a new process, and the modules that it imported; one
    that prints its memory first imports the compiler of torch, by which shapes are traced."""
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["fit", "made", "digits", "--budget", "1steps", "-q", "--out", str(out)]
    code = (
        f"import sys; from monge.cli.main import attempt; code = attempt({arguments!r}); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done, done.stderr.strip().rpartition("\n")[2].split()


def test_the_files_of_scikit_learn_are_what_it_loads():
    from sklearn.datasets import load_digits, load_iris

    from monge.data.builtin import sklearn_sets

    images, flowers = sklearn_sets.digits().values, sklearn_sets.iris()
    pixels, digits = load_digits().images, load_digits().target
    assert np.array_equal(images["image"], pixels)
    assert np.array_equal(images["label"], digits)
    known = load_iris()
    assert np.array_equal(flowers.values["x"], known.data)
    assert list(flowers.values["label"]) == known.target_names[known.target].tolist()
    assert list(flowers.codecs["x"].entries) == known.feature_names


def test_importing_monge_imports_no_torch():
    code = "import sys, monge; assert 'torch' not in sys.modules; assert monge.__version__"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_within_a_fifth_of_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "monge.cli.main", "--help"], check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2


def test_models_lists_what_the_classes_are():
    """What is read from the syntax trees equals what importing shows."""
    from monge import registry

    listed = json.loads(run("models", "--json")[0].stdout)
    assert {row["name"] for row in listed} == {entry.name for entry in registry.entries()}
    for row in listed:
        model_class = registry.find(row["name"])
        assert set(row["events"]) == model_class.events
        assert set(row["givens"]) == model_class.givens
        assert row["supports_missing"] == model_class.supports_missing
        assert row["uses_unlabelled"] == model_class.uses_unlabelled
        assert row["supports_variable_length"] == model_class.supports_variable_length
        assert set(row["abilities"]) == {
            vars(base)["ability"] for base in model_class.__mro__ if "ability" in vars(base)
        }
        assert row["summary"]


def test_one_model_is_found_without_reading_the_others():
    code = (
        "from monge import registry; registry.describe('chow_liu'); registry.find('chow_liu'); "
        "assert registry.entries_of.cache_info().currsize == 1; "
        "assert registry.tree.cache_info().currsize < 10"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_ability_has_its_own_name_and_task():
    from monge.core import abilities

    known = [
        each
        for each in vars(abilities).values()
        if isinstance(each, type)
        and issubclass(each, abilities.Ability)
        and each is not abilities.Ability
    ]
    assert len({vars(each)["ability"] for each in known}) == len(known) > 20
    assert len({vars(each)["task"] for each in known}) == len(known)


def test_no_name_of_a_class_of_abilities_is_shown(capsys):
    from monge.cli.main import attempt
    from monge.core import abilities

    names = {name for name in vars(abilities) if name.startswith(("Has", "Can"))}
    for words in (
        ["models", "--json"],
        ["models"],
        ["models", "vae"],
        ["models", "vae", "--json"],
    ):
        assert attempt(words) == 0
    shown = set(re.findall(r"\w+", capsys.readouterr().out))
    assert "vae" in shown
    assert not names & shown


def test_abilities_imported_from_the_package_are_recognised(tmp_path):
    from monge import registry

    (tmp_path / "mine.py").write_text(
        "from monge import CanEncode, CanSample, Model\n"
        "class Mine(Model, CanSample, CanEncode): ...\n"
    )
    assert registry.describe(str(tmp_path / "mine.py")).abilities == ("sample", "encode")
