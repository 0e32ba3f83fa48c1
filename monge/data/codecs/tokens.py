r"""Text as tokens: characters, words, bytes or subwords.

Subwords are byte-level BPE (Sennrich et al. 2016; Radford et al. 2019): it starts from the 256
bytes and repeatedly merges the most frequent pair of neighbours within a word (including the blank
before it) into one symbol. Every UTF-8 string can be encoded, and decoding is exact. Characters
are exact too, but unknown ones are refused; words outside the vocabulary become one symbol.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...core.deferred import torch
from ...core.errors import DataError
from ...core.space import Space
from ..packed import Ragged
from .base import Codec, Locator
from .sequence import SequenceCodec as Steps
from .sequence import pack, spread

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Unit = Literal["chars", "words", "bytes", "bpe"]
BYTES = 256
UNKNOWN = "<unk>"
"""The symbol of words outside the vocabulary."""
WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s")
"""Words, punctuation and white space; a blank belongs to the word after it."""
VOCABULARY = {"words": 10_000, "bpe": 4_000}
"""Default size of the vocabulary."""


class Text(Steps):
    """Rows of text as symbols 0..size-1; with `ends`, the last symbol ends a row."""

    tag = "codec/text"
    kind: Literal["real", "binary", "levels", "counts", "tokens"] = "tokens"
    unit: Unit
    """Kind of token."""
    symbols: tuple[str, ...] = ()
    """Characters or words, in the order of their codes; the first word is the unknown one."""
    merges: tuple[tuple[int, int], ...] = ()
    """Subwords: the two symbols merged into each symbol after the 256 bytes."""
    ends: bool = False
    """Whether rows end with an end symbol; otherwise they are blocks of running text."""
    dtype: str = "str"

    @classmethod
    def fit(
        cls, unit: Unit, texts: Sequence[str], train: Sequence[str], vocabulary: int, ends: bool
    ) -> Text:
        """Fit characters of all texts, or frequent words or subwords of `train`."""
        symbols: tuple[str, ...] = ()
        merges: tuple[tuple[int, int], ...] = ()
        if unit == "chars":
            symbols = tuple(sorted(set().union(*texts)))
        elif unit == "words":
            counts = Counter(word for text in train for word in WORDS.findall(text))
            most = (vocabulary or VOCABULARY[unit]) - 1
            symbols = (UNKNOWN, *(word for word, _ in counts.most_common(most)))
        elif unit == "bpe":
            merges = learn(train, vocabulary or VOCABULARY[unit])
        size = (len(spelling(merges)) if unit in ("bytes", "bpe") else len(symbols)) + ends
        return cls(
            unit=unit, symbols=symbols, merges=merges, ends=ends, size=size, longest=1, varies=True
        )

    @property
    def end(self) -> int | None:
        """The symbol that ends a row."""
        return self.size - 1 if self.ends else None

    @property
    def storage(self) -> type[np.integer[Any]]:
        """The smallest type that holds every symbol."""
        return np.uint8 if self.size <= BYTES else np.int16 if self.size <= 2**15 else np.int32

    def codes(self, texts: Sequence[str], at: Locator) -> np.ndarray:
        """The symbols of each text, an object array of arrays; at(i) names text i in messages."""
        last = [] if self.end is None else [self.end]
        cut: dict[Unit, Callable[[Sequence[str], Locator], Iterable[np.ndarray | list[int]]]] = {
            "chars": self.characters,
            "words": self.words,
            "bytes": self.bytes,
            "bpe": self.subwords,
        }
        rows = cut[self.unit](texts, at)
        dtype = self.storage
        return pack(
            [
                np.append(row, last).astype(dtype)
                if isinstance(row, np.ndarray)
                else np.array(row + last, dtype)
                for row in rows
            ]
        )

    def characters(self, texts: Sequence[str], at: Locator) -> Iterable[np.ndarray]:
        points = np.array([ord(symbol) for symbol in self.symbols], np.uint32)  # ascending
        for number, text in enumerate(texts):
            found = np.frombuffer(text.encode("utf-32-le"), np.uint32)
            place = np.searchsorted(points, found).clip(max=len(points) - 1)
            strange = np.flatnonzero(points[place] != found)
            if len(strange):
                where = int(strange[0])
                raise DataError(
                    f"{at(number)}: {text[where]!r}, character {where + 1}, is not "
                    f"one of the {len(points)} characters of the training text; remove "
                    "it, or fit with data.tokens=bytes or bpe"
                )
            yield place

    def words(self, texts: Sequence[str], at: Locator) -> Iterable[list[int]]:
        code = {word: number for number, word in enumerate(self.symbols)}
        return ([code.get(word, 0) for word in WORDS.findall(text)] for text in texts)

    def bytes(self, texts: Sequence[str], at: Locator) -> Iterable[np.ndarray]:
        return (np.frombuffer(text.encode(), np.uint8) for text in texts)

    def subwords(self, texts: Sequence[str], at: Locator) -> Iterable[list[int]]:
        found = tokenizer(self.merges).encode_batch_fast(list(texts), add_special_tokens=False)
        return (each.ids for each in found)

    def spell(self, row: Sequence[int]) -> str:
        """The text of some symbols, up to the end symbol."""
        codes = [int(code) for code in row]
        if self.end in codes:
            codes = codes[: codes.index(self.end)]
        if self.unit in ("chars", "words"):
            return "".join(self.symbols[code] for code in codes)
        known = spelling(self.merges)
        return b"".join(known[code] for code in codes).decode("utf-8", "replace")

    def pieces(self, row: Sequence[int]) -> list[str]:
        """The text of each symbol, up to and including the end symbol."""
        return ["</s>" if code == self.end else self.spell([code]) for code in map(int, row)]

    def encode(self, values: np.ndarray, at: Locator) -> Ragged:
        """`values` are symbols already, as readers cut running text into blocks of symbols."""
        for row, codes in enumerate(values):
            if not len(codes):
                raise DataError(f"{at(row)} is empty; remove it")
        length = torch.tensor([len(codes) for codes in values])
        flat = torch.from_numpy(np.concatenate(list(values)))
        return Ragged(flat, length.cumsum(0) - length, length)

    def decode(self, x: np.ndarray) -> np.ndarray:
        found = np.empty(len(x), object)
        found[:] = [self.spell(row) for row in np.asarray(x)]
        return found

    def measure(self, x: Ragged, name: str) -> Space:
        return Space(
            kind="tokens",
            shape=(self.longest,),
            size=self.size,
            varies=True,
            end=self.end,
            name=name,
            rows=len(x),
            high=(float(self.size - 1),),
        )

    def adopt(self, other: Codec, x: Any, name: str) -> Ragged:
        if (
            not isinstance(other, Text)
            or not isinstance(x, Ragged)
            or (other.unit, other.symbols, other.merges) != (self.unit, self.symbols, self.merges)
        ):
            raise DataError(f"{name} is not text as the run's is; give a text file")
        longest = int(x.length.max())
        if longest > self.longest:
            raise DataError(
                f"{name} has a row of {longest} tokens where the run has at most "
                f"{self.longest}; shorten it"
            )
        return x

    def vocabulary(self) -> dict[str, Any]:
        """Subwords in the format of `tokenizers`, characters and words as a list."""
        if self.unit == "bpe":
            return {"tokenizer": json.loads(tokenizer(self.merges).to_str())}
        return {"symbols": list(self.symbols)}

    def describe(self, rows: Ragged) -> str:
        shown = self.spell(rows[torch.zeros(1, dtype=torch.long)].rows[0].tolist())[:30]
        unit = "subwords" if self.unit == "bpe" else self.unit
        return f"{spread(rows.length)} {unit}, {shown!r}"


@cache
def letters() -> tuple[str, ...]:
    """The printable character that stands for each byte in the files of `tokenizers`."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in plain]
    moved = {byte: BYTES + place for place, byte in enumerate(others)}
    return tuple(chr(moved.get(byte, byte)) for byte in range(BYTES))


@cache
def spelling(merges: tuple[tuple[int, int], ...]) -> tuple[bytes, ...]:
    """The bytes of each symbol; two merges may give the same bytes, which are then one symbol."""
    known = {bytes([byte]): byte for byte in range(BYTES)}
    listed = list(known)
    for left, right in merges:
        joined = listed[left] + listed[right]
        if joined not in known:
            known[joined] = len(listed)
            listed.append(joined)
    return tuple(listed)


@cache
def tokenizer(merges: tuple[tuple[int, int], ...]) -> Tokenizer:
    """The tokenizer of these merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = letters()
    names = ["".join(alphabet[byte] for byte in spelled) for spelled in spelling(merges)]
    vocabulary = {name: number for number, name in enumerate(names)}
    pairs = [(names[left], names[right]) for left, right in merges]
    found = Tokenizer(models.BPE(vocabulary, pairs))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


def learn(texts: Iterable[str], vocabulary: int) -> tuple[tuple[int, int], ...]:
    """The merges that give a vocabulary of this size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if vocabulary <= BYTES:
        raise DataError(
            f"data.vocabulary={vocabulary} leaves nothing beside the {BYTES} bytes; "
            f"make it larger, or set data.tokens=bytes"
        )
    pupil = Tokenizer(models.BPE())
    pupil.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, show_progress=False, initial_alphabet=list(letters())
    )
    pupil.train_from_iterator(texts, trainer)
    code = {letter: byte for byte, letter in enumerate(letters())}
    merges = []
    for left, right in json.loads(pupil.to_str())["model"]["merges"]:
        merges.append((code[left], code[right]))
        code.setdefault(left + right, len(code))
    return tuple(merges)
