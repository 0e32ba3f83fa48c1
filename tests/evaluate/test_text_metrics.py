"""BLEU and chrF are sacrebleu's numbers; ROUGE-L and word errors are counted by hand."""

import pytest

from monge.core.errors import DataError
from monge.evaluate.text import bleu, chrf, common, cut, distance, rouge, word_errors

CASES = [  # candidates, references, BLEU and chrF by sacrebleu 2.6
    (["The cat sat on the mat ."], ["The cat sat on the mat."], 100.0, 100.0),
    (
        ['It costs $3.50, or 1,000-odd; "quite" cheap?'],
        ['It costs $3.50 or 1,000-odd "quite" cheap!'],
        49.355788,
        80.563088,
    ),
    (["a b c d e"], ["a x c d y"], 23.643540, 17.0),
    (
        ["hello there general", "A man &amp; a dog"],
        ["hello there General Kenobi", "A man & a dog run"],
        66.972791,
        53.321473,
    ),
    (["the the the the"], ["the cat is here"], 15.973578, 15.934343),
    (["Zwei Männer \u2013 im Freien…"], ["Zwei junge Männer im Freien…"], 25.406637, 54.789722),
    (["short"], ["a much longer reference here"], 0.0, 2.970297),
    ([""], ["a b"], 0.0, 0.0),
]


@pytest.mark.parametrize(("candidates", "references", "of_words", "of_letters"), CASES)
def test_the_numbers_are_sacrebleus(candidates, references, of_words, of_letters):
    assert bleu(candidates, references).value == pytest.approx(of_words, abs=1e-6)
    assert chrf(candidates, references).value == pytest.approx(of_letters, abs=1e-6)


def test_a_perfect_score_has_no_error_and_a_mixed_one_has():
    texts = [f"sentence number {i} of many words" for i in range(50)]
    assert bleu(texts, texts).value == pytest.approx(100)
    assert bleu(texts, texts).stderr == pytest.approx(0)
    mixed = bleu([text if i % 2 else "no" for i, text in enumerate(texts)], texts)
    assert 10 < mixed.value < 60
    assert 1 < mixed.stderr < 15


def test_marks_stand_alone_but_between_digits():
    assert cut('1,000.5 cats, "dogs".') == ["1,000.5", "cats", ",", '"', "dogs", '"', "."]
    assert cut("2010-2012") == ["2010", "-", "2012"]


def test_changes_and_common_words_are_counted():
    assert distance(["a", "b", "c", "d"], ["b", "c", "x", "d", "e"]) == 3
    assert common(["a", "b", "c", "d"], ["b", "x", "c", "d", "a"]) == 3
    assert word_errors(["one two"], ["one three four"]).value == pytest.approx(200 / 3)
    assert word_errors(["one two"], ["one two"]).kind == "loss"
    found = rouge(["The cat sat."], ["the cat stood up"])
    assert found["rouge_1"].value == pytest.approx(400 / 7)
    assert found["rouge_2"].value == pytest.approx(200 / 5)
    assert found["rouge_l"].value == pytest.approx(400 / 7)
    crossed = rouge(["police killed the gunman"], ["the gunman killed police"])  # Lin 2004, 3.1
    assert [crossed[name].value for name in found] == pytest.approx([100, 100 / 3, 50])
    assert rouge(["a a a"], ["a b"])["rouge_1"].value == pytest.approx(200 / 5)


def test_unequal_numbers_of_texts_are_refused():
    with pytest.raises(DataError, match=r"\b2 candidates\b.*\b1 references\b"):
        bleu(["a", "b"], ["a"])
