"""Config: frozen, checked by its hints, unchanged by JSON, changed by overrides."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monge import registry
from monge.core.abilities import CanSample
from monge.core.config import (
    MAX_INT,
    Config,
    Configured,
    Overrides,
    Range,
    RunRef,
    as_settings,
    check,
    name_of,
    number,
    parse,
    part_of,
    sizes,
    title_of,
)
from monge.core.config_help import choices_of, help_of
from monge.core.errors import UsageError
from monge.core.space import Space
from monge.core.train_config import OptimiserConfig, TrainConfig
from monge.nn.mlp import MLP


class Owner(Configured):
    class Config(Config):
        width: Annotated[int, Range(1, 512)] = 8
        """Units."""
        rate: Annotated[float, Range(0, open=True)] = 0.5
        kind: Literal["a", "b"] = "a"
        name: str = "x"
        flag: bool = False
        sizes: tuple[int, ...] = (1, 2)
        maybe: int | None = None
        net: MLP.Config = MLP.Config()
        helper: RunRef | None = None

    def __init__(self, config):
        self.config = config


recipes = st.builds(
    TrainConfig,
    lr=st.floats(1e-9, 1e3),
    batch_size=st.integers(1, 10**6),
    grad_clip=st.floats(0, 100),
    optimiser=st.sampled_from(["adam", "adamw", "sgd", "rmsprop", "adagrad"]),
    betas=st.tuples(st.floats(0, 0.9999), st.floats(0, 0.9999)),
    nesterov=st.booleans(),
    updates=st.dictionaries(
        st.sampled_from(["critic", "generator"]),
        st.builds(OptimiserConfig, lr=st.floats(1e-9, 1)),
    ),
)


@given(recipes)
def test_survives_json(train_config):
    assert TrainConfig.from_dict(json.loads(json.dumps(train_config.to_dict()))) == train_config


@given(
    st.integers(1, 512),
    st.floats(1e-6, 1e6),
    st.booleans(),
    st.lists(st.integers(-9, 9), max_size=4),
    st.none() | st.integers(-MAX_INT, MAX_INT),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
)
def test_overrides_equal_keywords(width, rate, flag, sizes, maybe, name):
    overrides = [
        f"width={width}",
        f"rate={rate!r}",
        f"flag={str(flag).lower()}",
        f"name={name}",
        f"sizes={','.join(map(str, sizes))}",
        f"maybe={maybe}",
        "net.width=3",
    ]
    expected = Owner.Config(
        width=width,
        rate=rate,
        flag=flag,
        sizes=tuple(sizes),
        maybe=maybe,
        name=name,
        net=MLP.Config(width=3),
    )
    assert Owner.Config().override(*overrides) == expected
    assert Owner.Config().override(*reversed(overrides)) == expected


@given(st.text(max_size=12))
def test_no_text_breaks_the_grammar(text):
    """Any text either changes the configuration or is refused."""
    try:
        outcome = repr(Owner.Config().override(text))
    except UsageError as error:
        outcome = str(error)
    assert outcome


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("widht=3", ["'widht'", "width"]),
        ("width=0", ["width=0", "1", "512"]),
        ("width=2.5", ["width=2.5"]),
        ("width=many", ["width='many'"]),
        ("rate=0", ["rate=0.0"]),
        ("flag=perhaps", ["flag='perhaps'", "true", "false"]),
        ("kind=c", ["kind=c", "a, b"]),
        ("net.widht=3", ["'widht'", "width"]),
        ("drpout=0.1", ["'drpout'", "net.dropout"]),
        ("net=mpl", ["net=mpl", "mlp"]),
        ("width", ["name=value", "'width'"]),
        ("name.more=1", ["'more'"]),
    ],
)
def test_wrong_overrides_are_refused(text, values):
    with pytest.raises(UsageError) as caught:
        Owner.Config().override(text)
    assert [value for value in values if value not in str(caught.value)] == []


def test_an_update_gets_settings_of_its_own():
    train_config = TrainConfig(momentum=0.5).override("updates.critic.lr=2e-4", "lr=1e-3")
    assert train_config.optimiser_config("critic") == OptimiserConfig(lr=2e-4, momentum=0.5)
    assert train_config.optimiser_config("other").lr == 1e-3


def test_whole_floats_are_whole_numbers():
    assert TrainConfig().override("batch_size=1e3").batch_size == 1000


def test_frozen_and_builds_its_owner():
    config = Owner.Config()
    with pytest.raises(AttributeError):
        config.width = 3
    assert config.build().config is config
    assert help_of(Owner.Config)["width"] == "Units."


def test_a_part_is_named_by_its_run():
    config = Owner.Config().override("helper=runs/other")
    assert config.helper == RunRef("runs/other")


def test_an_unknown_stored_field_is_refused():
    with pytest.raises(UsageError, match=r"'wdth'.*width"):
        MLP.Config.from_dict(MLP.Config().to_dict() | {"wdth": 3})


def test_a_space_is_a_tree_that_survives_json():
    label = Space(kind="label", size=10)
    space = Space(kind="levels", size=17, shape=(1, 8, 8), given={"label": label})
    again = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    assert again == space
    assert again.given["label"].size == 10
    assert len(space.parts) == 64


def test_overrides_are_sorted_by_their_prefix():
    overrides = Overrides.parse(
        ["width=3", "train.lr=1", "data.rows=5", "sample.steps=2", "net.width=.5"]
    )
    assert overrides == Overrides(
        ("width=3", "net.width=.5"), ("lr=1",), ("rows=5",), ("steps=2",)
    )


class Pair(Configured):
    class Config(Config):
        left: MLP.Config = MLP.Config()
        right: Owner.Config = Owner.Config()

    def __init__(self, config):
        self.config = config


def test_a_field_of_one_part_alone_needs_no_path():
    assert Pair.Config().override("depth=9") == Pair.Config().override("left.depth=9")
    with pytest.raises(
        UsageError,
        match=r"'width'.*left\.width.*right\.width",
    ):
        Pair.Config().override("width=2")
    with pytest.raises(UsageError, match=r"'dept'.*left\.depth"):
        Pair.Config().override("dept=2")


def test_a_part_is_chosen_before_its_fields_are_set():
    both = Pair.Config().override("depth=9", "left=mlp")
    assert both == Pair.Config().override("left=mlp", "depth=9")
    assert both.left.depth == 9


@pytest.mark.parametrize("kind", [OptimiserConfig, TrainConfig])
def test_other_common_names_of_training_settings_lead_to_the_right_one(kind):
    known = {field.name for field in fields(kind)}
    assert set(kind.aliases.values()) <= known
    assert not set(kind.aliases) & known
    for name, meant in kind.aliases.items():
        with pytest.raises(UsageError, match=rf"'{name}'.* {meant}\?"):
            kind().override(f"{name}=1")
    with pytest.raises(UsageError, match=r"'learing_rate'.* lr\?"):
        kind().override("learing_rate=1")


def test_keywords_are_typed_settings():
    fields = {"latent": 8, "train": {"lr": 1e-3, "sizes": [1, 2]}, "on": True, "maybe": None}
    assert [*as_settings(fields)] == [
        "latent=8",
        "train.lr=0.001",
        "train.sizes=1,2",
        "on=true",
        "maybe=none",
    ]
    with pytest.raises(UsageError, match="net"):
        [*as_settings({"net": TrainConfig()})]


def test_choices_are_read_through_unions():
    class Chosen(Config):
        plain: int = 3
        one: Literal["a", "b"] = "a"
        noted: Annotated[Literal["c", "d"], "note"] = "c"
        either: Literal["e", 5] | None = None

    found = choices_of(Chosen)
    assert found == {"plain": (), "one": ("a", "b"), "noted": ("c", "d"), "either": ("e", "5")}


def test_a_range_admits_its_ends_unless_it_is_open():
    assert [Range(1, 3).admits(v) for v in (0.9, 1, 3, 3.1)] == [False, True, True, False]
    assert [Range(1, open=True).admits(v) for v in (1, 1.1, 1e9)] == [False, True, True]
    assert [Range(high=2).admits(v) for v in (-1e9, 2, 2.1)] == [True, True, False]
    assert Range().admits(-1e300)
    assert str(Range(0, 1, open=True)) == "above 0 and at most 1"
    assert str(Range(0)) == "at least 0"


def test_numbers_are_as_large_as_they_can_be_held():
    assert check("n", int, MAX_INT) == MAX_INT
    assert check("n", int, -MAX_INT) == -MAX_INT
    for value in (MAX_INT + 1, -MAX_INT - 1):
        with pytest.raises(UsageError, match="n="):
            check("n", int, value)
    assert check("x", float, 3) == 3.0
    assert type(check("x", float, int(1e300) - 1)) is float
    for value in (int(1e300), True, "3", None):
        with pytest.raises(UsageError, match="x="):
            check("x", float, value)
    for kind, value in ((int, 3.0), (int, True), (str, 3), (bool, 1)):
        with pytest.raises(UsageError, match="v="):
            check("v", kind, value)


def test_tuples_have_their_entries():
    assert check("t", tuple[int, ...], [1, 2, 3]) == (1, 2, 3)
    assert check("t", tuple[int, float], [1, 2]) == (1, 2.0)
    for kind, value in ((tuple[int, float], [1]), (tuple[int, ...], 3), (tuple[int, ...], "12")):
        with pytest.raises(UsageError, match="t="):
            check("t", kind, value)
    with pytest.raises(UsageError, match=r"t\[1\]='x'"):
        check("t", tuple[int, ...], [1, "x"])
    with pytest.raises(UsageError, match=r"m\.a='x'"):
        check("m", Mapping[str, int], {"a": "x"})
    with pytest.raises(UsageError, match="m=3"):
        check("m", Mapping[str, int], 3)


def test_text_becomes_the_number_that_it_says():
    assert [number(int, t) for t in ("12", "1e3", "2.5", "x", "-0")] == [12, 1000, 2.5, "x", 0]
    assert number(int, str(MAX_INT)) == MAX_INT  # not by way of a float
    assert [number(float, t) for t in ("12", "1e3", "x")] == [12.0, 1000.0, "x"]
    assert type(number(float, "12")) is float
    assert parse(tuple[int, ...], "[1, 2,]") == [1, 2]
    assert parse(tuple[str, ...], "a (cm), (b)+c") == ["a (cm)", "(b)+c"]
    assert parse(tuple[str, ...], "(a, b (cm))") == ["a", "b (cm)"]
    assert parse(int | None, "None") is None
    assert parse(int | None, "4") == 4
    assert parse(Literal["a", 5], "5") == 5
    assert parse(bool, "Yes") is True
    assert parse(bool, "OFF") is False


class Counted(Config):
    a: int = 3
    b: tuple[int, ...] = (2, 0, 5)
    rows: int = 99
    c: Mapping[str, int]
    d: float = 0.5


def test_the_sizes_of_a_configuration_are_its_whole_numbers_and_products():
    assert [*sizes(Counted(c={"x": 7, "y": 8}))] == [3, 3, 2, 0, 5, 10, 7, 8]
    assert max(sizes(Counted(b=(10**9, 10**9), c={}))) == 10**18


def test_messages_call_a_configuration_by_its_name():
    assert title_of(TrainConfig) == "train"
    assert title_of(MLP.Config) == "mlp"
    assert title_of(object) == "options"
    assert name_of(MLP.Config) == "mlp"
    assert part_of(MLP.Config) is part_of(MLP.Config | None) is MLP.Config
    assert part_of(int) is part_of(MLP.Config | TrainConfig) is None


class Sharper(Config):
    neutral = {"weight": (None, 1.0)}
    weight: float | None = None
    steps: int = 10


class Drawing(Config):
    neutral = {"mean": (False,), "start": (None,)}
    mean: bool = False
    start: RunRef | None = None
    inner: Sharper = Sharper()


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ((), ""),
        (("inner.steps=3",), ""),
        (("inner.weight=1",), ""),
        (("inner.weight=2",), "inner.weight=2.0"),
        (("mean=true", "inner.weight=2"), "mean=true"),
        (("start=runs/a",), "start=runs/a"),
    ],
)
def test_options_name_what_leaves_the_models_distribution(settings, found):
    assert Drawing().override(*settings).departure() == found


def test_default_options_sample_the_models_distribution():
    for entry in registry.entries():
        if CanSample.ability in entry.abilities:
            assert registry.find(entry.name).SamplingConfig().departure() == ""
