"""What messages repeat of a value, and which choices they name."""

import pytest

from monge.core.errors import (
    MAX_CHOICES,
    MAX_PART,
    MAX_SHOWN,
    MAX_WORD,
    NEAREST_CHOICES,
    nearest,
    shorten_words,
    shown,
)


@pytest.mark.parametrize("value", ["x" * (MAX_PART - 2), 10 ** (MAX_PART - 1)])
def test_a_value_is_shown_whole_up_to_its_length(value):
    assert shown(value) == repr(value)
    longer = shown(value + value[:1] if isinstance(value, str) else 10 * value)
    assert len(longer) == MAX_PART
    assert "..." in longer


def test_a_collection_is_cut_at_its_end():
    pieces = ["y" * 40] * 6
    whole = repr(pieces)
    assert shown(pieces) == f"{whole[:MAX_SHOWN]}..."
    fits = ["y" * (MAX_SHOWN // 2 - 6), "y" * (MAX_SHOWN - 2 - (MAX_SHOWN // 2 - 6 + 2) - 4)]
    assert len(repr(fits)) == MAX_SHOWN
    assert shown(fits) == repr(fits)


def test_choices_are_named_in_full_or_the_nearest_of_many():
    few = [2 * letter for letter in "abcdefghijkl"]
    assert len(few) == MAX_CHOICES

    def named(name, known):
        return [each for each in known if each in nearest(name, known)]

    assert named("zz", few) == few
    assert len(named("zz", [*few, "mm"])) == NEAREST_CHOICES
    assert str(MAX_CHOICES + 1) in nearest("zz", [*few, "mm"])
    assert named("xb", ["xc", "zz"]) == ["xc"]  # half of it is the same
    assert named("xbq", ["xcr", "zz"]) == ["xcr", "zz"]


def test_long_words_of_a_sentence_are_cut_and_keep_its_punctuation():
    assert shorten_words("a " + "w" * MAX_WORD + "\n b") == "a " + "w" * MAX_WORD + " b"
    cut = shorten_words("a " + "w" * (MAX_WORD + 1) + "'?; b")
    assert cut == f"a {'w' * (MAX_WORD // 2)}...'?; b"
