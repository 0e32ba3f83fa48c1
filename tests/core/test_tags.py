"""Tags: what saved files call a configuration, whatever happens to its module or class."""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monge
from monge import registry
from monge.core import config as tags
from monge.core.config import Config, Configured, RunRef, hints
from monge.core.ensemble import Ensemble
from monge.core.errors import UsageError
from monge.core.train_config import TrainConfig
from monge.data.schema import Selection
from monge.models.latent.vae import VAE
from monge.nn.mlp import MLP

HOSTILE = [
    "monge.__main__:x",
    "monge.models.latent.vae:VAE.Config",
    "monge.nn.mlp",
    "os:system",
    "builtins:dict",
    "",
    "/",
    "net/",
    "net/..",
    "../mlp",
    "net/mlp\n",
    "NET/MLP",
    "model/",
    "user/no.Such",
    "x" * 100_000,
    3,
    0.5,
    None,
    True,
    [],
    ["net/mlp"],
    {"is": "net/mlp"},
]


def descendants(kind):
    for child in kind.__subclasses__():
        if child.__module__.startswith("monge."):
            yield child
            yield from descendants(child)


def kinds_in(hint):
    if isinstance(hint, type) and issubclass(hint, Config):
        yield hint
    for inner in get_args(hint):
        yield from kinds_in(inner)


def is_concrete(kind):
    return not inspect.isabstract(kind) and not inspect.isabstract(getattr(kind, "owner", None))


@pytest.fixture(scope="module")
def saved():
    """Every class whose values a saved file may hold: models, training, data, and what their
    fields may hold in turn."""
    for module in pkgutil.walk_packages(monge.__path__, "monge."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    queue = [registry.find(entry.name).Config for entry in registry.entries()]
    queue += [Ensemble.Config, TrainConfig, Selection]
    found = set()
    while queue:
        kind = queue.pop()
        if kind not in found and kind is not Config:
            found.add(kind)
            queue += [*descendants(kind), *(k for h in hints(kind).values() for k in kinds_in(h))]
    return {kind for kind in found if is_concrete(kind)}


def test_whatever_is_saved_has_a_tag_of_its_own(saved):
    assert len(saved) > 100
    assert [kind for kind in saved if not tags.is_saved(kind) or "tag" not in vars(kind)] == []
    assert len({kind.tag for kind in saved}) == len(saved)
    assert not any("monge" in kind.tag or ":" in kind.tag for kind in saved)


def test_the_index_of_files_knows_every_tag_and_no_other(saved):
    declared = {kind.tag: kind for kind in descendants(Config) if tags.is_saved(kind)}
    assert set(tags.modules()) == set(declared)
    assert all(tags.modules()[tag] == kind.__module__ for tag, kind in declared.items())
    assert {kind.tag for kind in saved} <= set(declared)


def test_defaults_survive_json():
    kinds = [tags.find(tag) for tag in tags.modules()]
    complete = [
        kind
        for kind in kinds
        if not any(
            each.default is MISSING and each.default_factory is MISSING for each in fields(kind)
        )
    ]
    assert len(complete) > 100
    for kind in complete:
        again = Config.from_dict(json.loads(json.dumps(kind().to_dict())))
        assert type(again) is kind
        assert again == kind()


def test_the_defaults_of_every_model_survive_json():
    for entry in registry.entries():
        config = registry.find(entry.name).Config()
        assert config.to_dict()["is"].startswith("model/")
        assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("where", HOSTILE, ids=lambda value: repr(value)[:20])
def test_hostile_tags_are_refused(where, monkeypatch):
    def forbidden(name):
        raise AssertionError(f"imports {name}")

    monkeypatch.setattr(importlib, "import_module", forbidden)
    for tree in ({"is": where}, MLP.Config().to_dict() | {"is": where}, {}):
        with pytest.raises(UsageError) as caught:
            Config.from_dict(tree)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("tree", [3, "net/mlp", [], None], ids=repr)
def test_what_is_no_tree_is_refused(tree):
    with pytest.raises(UsageError, match=re.escape(repr(tree))):
        Config.from_dict(tree)


def test_a_tag_of_another_role_is_refused():
    tree = VAE.Config().to_dict()
    with pytest.raises(UsageError, match=r"prior.*prior/.*net/mlp"):
        Config.from_dict(tree | {"prior": MLP.Config().to_dict()})
    with pytest.raises(UsageError, match=r"net/mlp.*model/latent\.vae"):
        MLP.Config.from_dict(tree)


def test_an_incomplete_tree_is_refused():
    with pytest.raises(UsageError, match=r"data/space.*\bkind\b"):
        Config.from_dict({"is": "data/space"})


@pytest.mark.parametrize("depth", [50, 100_000])
def test_deep_trees_are_refused(depth):
    tree: object = 3
    for _ in range(depth):
        tree = {"is": "data/space", "kind": "real", "given": {"x": tree}}
    with pytest.raises(UsageError) as caught:
        Config.from_dict(tree)
    assert len(str(caught.value)) < 400


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["net/mlp", "prior/mixture", "10" * 99, 10**400])
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["is", "width", "run", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from([*VAE.Config().to_dict(), "is"]), trees)
def test_any_stored_value_is_read_or_refused(field, value):
    sentence = ""
    try:
        outcome = Config.from_dict(VAE.Config().to_dict() | {field: value})
        assert Config.from_dict(outcome.to_dict()) == outcome
    except UsageError as error:
        sentence = str(error)
    assert len(sentence) < 400


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_path_of_a_module_imports_nothing():
    run(
        "import sys\n"
        "from monge.core.config import Config\n"
        "before = set(sys.modules)\n"
        "for where in ('monge.__main__:x', 'monge.__main__', 'monge.nn.mlp:MLP.Config'):\n"
        "    try:\n"
        "        Config.from_dict({'is': where})\n"
        "    except ValueError:\n"
        "        continue\n"
        "    sys.exit('read')\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
        "assert 'torch' not in before"
    )


def test_a_tag_imports_its_module_alone():
    run(
        "import sys\n"
        "from monge.core.config import Config\n"
        "assert Config.from_dict({'is': 'train/settings'}).tag == 'train/settings'\n"
        "assert 'torch' not in sys.modules\n"
        "Config.from_dict({'is': 'posterior/factorised'})\n"
        "assert not [name for name in sys.modules if name.endswith(('.vae', '.unet', '.gan'))]"
    )


class Mine(Configured):
    class Config(MLP.Config):
        more: int = 1

    class Other(Config):
        tag = "mine/other"


def test_a_class_outside_the_library_needs_no_tag():
    assert Mine.Config.tag == "user/test_tags.Mine"
    assert Mine.Other.tag == "mine/other"
    for config in (Mine.Config(more=3), Mine.Other(more=4)):
        assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


class Owner(Configured):
    class Config(Config):
        net: MLP.Config = MLP.Config()
        weight: float = 1.0
        helper: RunRef | None = None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", 10**400),
        ("weight", "9" * 9999),
        ("helper", {"run": 3}),
        ("helper", {"run": []}),
        ("helper", {"folder": "x"}),
        ("net", {"is": "net/mlp", "width": [[]]}),
    ],
)
def test_hostile_values_are_refused(field, value):
    with pytest.raises(
        UsageError, match=r"width=\[\[\]\]" if field == "net" else rf"{field}[.=]"
    ) as caught:
        Config.from_dict(Owner.Config().to_dict() | {field: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mlp", MLP.Config),
        ("MLP", MLP.Config),
        ("net/mlp", MLP.Config),
        ("mine", Mine.Config),
        ("user/test_tags.Mine", Mine.Config),
    ],
)
def test_a_part_is_chosen_by_its_name(text, kind):
    assert type(Owner.Config().override(f"net={text}").net) is kind


def test_two_parts_of_one_name_need_their_full_tags():
    class Mine(Configured):
        class Config(MLP.Config):
            tag = "elsewhere/mine"

    try:
        with pytest.raises(UsageError, match=r"user/test_tags\.Mine.*elsewhere/mine"):
            Owner.Config().override("net=mine")
        assert type(Owner.Config().override("net=elsewhere/mine").net) is Mine.Config
    finally:
        del tags.defined["elsewhere/mine"]


@pytest.mark.parametrize("taken", ["net/mlp", "model/baseline.chow_liu", "mine/other"])
def test_a_taken_tag_is_refused(taken):
    with pytest.raises(UsageError, match=taken):
        type("Thief", (Config,), {"tag": taken, "__module__": __name__})
    assert tags.find(taken).__name__ != "Thief"


def test_the_choices_of_a_role_do_not_depend_on_what_is_imported(saved):
    def choices(kind):
        return {each.tag for each in tags.fillers(kind) if each.tag in tags.modules()}

    assert choices(MLP.Config) == {"net/mlp"}
    assert choices(hints(VAE.Config)["net"]) == {
        "encoder_decoder/dense",
        "encoder_decoder/convolution",
        "encoder_decoder/grid",
    }


def test_settings_that_are_not_saved_have_no_tag():
    with pytest.raises(TypeError, match="SamplingConfig"):
        VAE.SamplingConfig().to_dict()


class Versioned(Config):
    tag = "test_tags/versioned"
    wide: bool = False

    @property
    def weights_version(self):
        return 3 if self.wide else 1


class Holder(Config):
    tag = "test_tags/holder"
    part: Versioned = Versioned()


def test_the_version_of_weights_is_saved_behind_the_tag():
    config = Holder(part=Versioned(wide=True))
    stored = json.loads(json.dumps(config.to_dict()))
    assert (stored["is"], stored["part"]["is"]) == ("test_tags/holder", "test_tags/versioned@3")
    assert Config.from_dict(stored) == config
    assert Versioned().to_dict()["is"] == "test_tags/versioned"


@pytest.mark.parametrize("version", ["", "@2", "@4", "@03", "@", "@3@3"])
def test_weights_of_another_version_are_refused(version):
    stored = Holder(part=Versioned(wide=True)).to_dict()
    stored["part"]["is"] = f"test_tags/versioned{version}"
    with pytest.raises(UsageError, match="test_tags/versioned@3"):
        Config.from_dict(stored)


def test_a_version_of_settings_that_have_none_is_refused():
    with pytest.raises(UsageError, match="net/mlp@2"):
        Config.from_dict(MLP.Config().to_dict() | {"is": "net/mlp@2"})
