"""Data files that are damaged or written to deceive: each is read or refused in one sentence.

    python tests/attack/hostile_data.py --tries 300 --seed 7

A try writes a file of some format (csv, tsv, txt, gz, wav, png, gif, jpeg, idx, npy, npz, parquet,
zip): flipped bits, cut, filled with odd cells, under a wrong suffix, with headers that lie about
its size, packed to unpack to gigabytes, with a pickled object that would write a file. It is then
opened and described, and some are fitted. Anything but success or an error of ours counts as
failed, and so do code that ran, more than a gigabyte of memory, and a page in which a name from
the file is part of the markup.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import resource
import signal
import string
import struct
import sys
import tempfile
import traceback
import wave
import zipfile
import zlib
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import numpy as np
from attacking import Seed, main
from PIL import Image

import monge
from monge.core.errors import MongeError
from monge.data.readers import base

LIMIT_SECONDS, LIMIT_BYTES = 60, 10**9
"""Of the processor, and of memory."""
AVAILABLE = 2 * 10**8
"""Bytes of memory that readers find, a quarter of which unpacked content may fill."""
MARKUP = ('<script>alert("x")</script>', "<img src=x onerror=alert(1)>", "</style><svg onload=x>")
CELLS = (
    "", "0", "1", "-1", "1e400", "nan", "inf", "-inf", "NULL", "NA", "3.5", "abc", "true", "é",
    str(2**63), str(10**30), "0x10", "1_000", "1,5", "2020-01-01", "31/12/1999", "12:30", "=1+1",
    "\0", '"', "''", "a b", " ", "\t", "x" * 5000, "../../up", *MARKUP, "\ufeff", "\U0001f600",
    "1e-320",
)  # fmt: skip


class Bomb:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def table(chance: random.Random, sign: str = ",") -> bytes:
    """Lines of cells: mostly a good table with a few odd cells, names, line ends or encodings."""
    rows, columns = chance.choice((1, 3, 40, 40)), chance.randrange(1, 6)
    names = [
        chance.choice(CELLS) if chance.random() < 0.2 else string.ascii_letters[place]
        for place in range(columns)
    ]
    kinds = [
        chance.choice(
            (
                lambda row: str(row),
                lambda row: f"{chance.gauss(0, 1):.4g}",
                lambda row: chance.choice("abc"),
                lambda row: f"2021-01-{row % 28 + 1:02}",
                lambda row: chance.choice(CELLS),
            )
        )
        for _ in range(columns)
    ]
    odd = chance.choice((0.0, 0.01, 0.05, 0.5))
    lines = [names] if chance.random() < 0.8 else []
    for row in range(rows):
        cells = [chance.choice(CELLS) if chance.random() < odd else kind(row) for kind in kinds]
        lines.append(cells[: chance.randrange(columns)] if chance.random() < odd / 4 else cells)
    if chance.random() < 0.6:  # quoted as it should be
        lines = [['"' + c.replace('"', '""') + '"' if sign in c else c for c in r] for r in lines]
    text = chance.choice(("\n", "\n", "\r\n", "\r")).join(sign.join(cells) for cells in lines)
    return text.encode(chance.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")), "replace")


def picture(chance: random.Random, form: str) -> bytes:
    mode = chance.choice(("L", "RGB", "P", "1", "RGBA", "I;16") if form == "PNG" else ("L", "RGB"))
    image, out = Image.new(mode, (chance.randrange(1, 9), chance.randrange(1, 9))), io.BytesIO()
    more = {"save_all": True, "append_images": [image]} if chance.random() < 0.2 else {}
    image.save(out, form, **(more if form != "JPEG" else {}))
    body = out.getvalue()
    if form == "PNG" and chance.random() < 0.3:  # a header that says it is huge
        size = chance.choice((2**31 - 1, 60_000, 0))
        head = b"IHDR" + struct.pack(">II", size, size) + body[24:29]
        body = body[:12] + head + struct.pack(">I", zlib.crc32(head)) + body[33:]
    if form == "GIF" and chance.random() < 0.3:
        body = body[:6] + struct.pack("<HH", 65535, 65535) + body[10:]
    return body


def sound(chance: random.Random) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(chance.choice((1, 2)))
        file.setsampwidth(chance.choice((1, 2, 3, 4)))
        file.setframerate(chance.choice((1, 8000, 10**8)))
        file.writeframes(chance.randbytes(chance.randrange(0, 4000)))
    body = bytearray(out.getvalue())
    if chance.random() < 0.3:  # a header that lies
        place = chance.choice((4, 16, 20, 22, 24, 28, 32, 34, 40))
        body[place : place + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, chance.randbytes(4)))
    return bytes(body)


def array(chance: random.Random) -> np.ndarray:
    shape = chance.choice(((30,), (30, 3), (30, 4, 4), (30, 1, 4, 4), (0, 3), (30, 0), (), (2, 2)))
    kinds = ("f2", "f4", "f8", "i8", "u8", "u1", "?", "U3", "S3", "c8", "M8[s]", "m8[s]", "V4")
    kind = chance.choice((*kinds, ">f4", "i2", "f4", "f4", [("a", "f4"), ("b", "i4")]))
    raw = chance.randbytes(int(np.prod(shape)) * np.dtype(kind).itemsize)
    if kind == "U3":
        return np.full(shape, chance.choice(("abc", MARKUP[0][:3])))
    return np.frombuffer(raw, kind).reshape(shape)


def npy(chance: random.Random, canary: Path) -> bytes:
    out = io.BytesIO()
    if chance.random() < 0.15:
        np.save(out, np.array([Bomb(canary)], object), allow_pickle=True)
        return out.getvalue()
    if chance.random() < 0.1:
        return pickle.dumps(Bomb(canary))
    np.save(out, array(chance), allow_pickle=False)
    body = out.getvalue()
    if chance.random() < 0.2:
        body = body.replace(b"(30,", chance.choice((b"(10000000000,", b"(-30,", b"(30.5,")))
    return body


def archive(chance: random.Random, canary: Path) -> bytes:
    out = io.BytesIO()
    names = ("x.npy", "y.npy", "../../up.npy", "file.npy", "x", f"{MARKUP[0][:9]}.npy", "x_train")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name in chance.sample(names, chance.randrange(0, 4)):
            if chance.random() < 0.1:
                file.writestr(name, bytes(6 * 10**7))
            else:
                file.writestr(name, npy(chance, canary))
    return out.getvalue()


def index(chance: random.Random) -> bytes:
    axes = chance.choice((1, 2, 3, 3, 4, 0, 200))
    shape = [chance.choice((20, 3, 1, 0, 2**32 - 1)) for _ in range(min(axes, 5))]
    head = bytes([0, 0, chance.choice((8, 9, 11, 12, 13, 14, 99)), axes])
    size = min(int(np.prod([float(n) for n in shape])), 5000)
    return head + b"".join(struct.pack(">I", n) for n in shape) + chance.randbytes(size)


def words(chance: random.Random) -> bytes:
    letters = chance.choice(("ab \n", string.printable, "\0\x01\xff", "é\u200b\ud7ff \n"))
    return "".join(chance.choices(letters, k=chance.choice((0, 3, 400, 3000)))).encode()


def packed(body: bytes, chance: random.Random) -> bytes:
    return BOMB if chance.random() < 0.1 else gzip.compress(body, 1)


BOMB = gzip.compress(bytes(10**7), 1) * 30
"""300 kB that unpack to 300 MB."""


def damaged(body: bytes, chance: random.Random) -> bytes:
    content, way = bytearray(body), chance.random()
    if way < 0.6 or not content:
        return body
    if way < 0.8:
        for _ in range(chance.choice((1, 3, 30))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif way < 0.92:
        del content[chance.randrange(len(content)) :]
    elif way < 0.95:
        place = chance.randrange(len(content))
        content[place:place] = chance.randbytes(chance.randrange(50))
    else:
        content = bytearray(chance.randbytes(chance.randrange(300)))
    return bytes(content)


SUFFIXES = (
    "csv", "tsv", "txt", "data", "csv.gz", "tsv.gz", "txt.gz", "wav", "png", "gif", "jpg", "jpeg",
    "npy", "npz", "idx", "parquet", "zip",
)  # fmt: skip


def plain_picture(form: str) -> bytes:
    out = io.BytesIO()
    Image.new("L", (4, 4), 7).save(out, form)
    return out.getvalue()


def plain_sound() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(400))
    return out.getvalue()


GOOD = {"png": plain_picture("PNG"), "gif": plain_picture("GIF"), "wav": plain_sound()} | {
    suffix: plain_picture("JPEG") for suffix in ("jpg", "jpeg")
}
"""Files that hostile ones lie among."""


def write(folder: Path, chance: random.Random, canary: Path) -> Path:
    """A hostile file."""
    suffix = chance.choice(SUFFIXES)
    kind = suffix.removesuffix(".gz")
    if kind in ("csv", "tsv", "data"):
        body = table(chance, "\t" if kind == "tsv" else chance.choice(",,;|"))
    elif kind in ("png", "gif", "jpg", "jpeg"):
        body = picture(chance, {"png": "PNG", "gif": "GIF"}.get(kind, "JPEG"))
    elif kind in ("npz", "zip"):
        body = archive(chance, canary)
    elif kind == "parquet":
        body = b"PAR1" + chance.randbytes(chance.randrange(200)) + b"PAR1"
    elif kind == "txt":
        body = words(chance)
    else:
        body = {"wav": sound, "idx": index}.get(kind, lambda c: npy(c, canary))(chance)
    body = damaged(body, chance)
    body = packed(body, chance) if suffix.endswith(".gz") else body
    if chance.random() < 0.05:
        suffix = chance.choice(SUFFIXES)
    stem = chance.choice(("x", "a b", "<b>x", "x" * 180, "é", "-x", "x+y", "x~y", "x,y", "%s{}"))
    path = folder / f"{stem}.{suffix}"
    path.write_bytes(body)
    if kind in GOOD and chance.random() < 0.7:  # one of many in a folder
        for place in range(12):
            (folder / f"good{place}.{kind}").write_bytes(GOOD[kind])
        return folder
    return path


def use(path: Path, fitted: bool, out: Path) -> None:
    """What the commands do with a file of data."""
    found = monge.open(path)
    _ = str(found.view().space), found.notes, found.fingerprint
    about = monge.describe(path)
    _ = repr(about), str(about)
    if fitted:
        run = monge.fit("independent", path, out=out, budget="1step")
        run.sample(3, seed=0)
        check_page(monge.write_report(run.folder))


class Tags(HTMLParser):
    """The markup of a page; none of it comes from names in the data."""

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                raise AssertionError(f"<{tag} {name}={value!r:.50}> is in the page")
        if tag in ("svg", "img") and ("src", "x") in attrs:
            raise AssertionError(f"<{tag}> of a name is in the page")
        self.script = tag == "script"

    script = False

    def handle_data(self, data):
        if self.script and "alert(" in data:
            raise AssertionError("a script of a name is in the page")


def check_page(path: Path) -> None:
    parser = Tags()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()


def late(*_: object) -> None:
    raise TimeoutError(f"took longer than {LIMIT_SECONDS} s")


def attack(tries: int, seed: Seed) -> list[str]:
    """The files that were neither read nor refused in a sentence, each in a line."""
    failed = []
    before = signal.signal(signal.SIGPROF, late)
    for number in range(tries):
        chance = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as scratch:
            canary, inside = Path(scratch) / "ran", Path(scratch) / "inside"
            inside.mkdir()
            path = write(inside, chance, canary)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            wrong = None
            signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
            try:
                with mock.patch.object(base, "available", return_value=AVAILABLE):
                    use(path, chance.random() < 0.1, Path(scratch) / "run")
            except MongeError as error:
                if not str(error).strip() or "\n" in str(error) or len(str(error)) > 2000:
                    wrong = f"not one sentence: {str(error)!r:.300}"
            except Exception as error:  # what this script looks for
                place = traceback.extract_tb(error.__traceback__)[-1]
                wrong = f"{error!r:.200} at {place.filename}:{place.lineno}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)
            if more > LIMIT_BYTES and sys.platform == "linux":
                wrong = f"took {more / 1e9:.1f} GB"
            if canary.exists():
                wrong = "ran code"
            if wrong:
                failed.append(f"{number} {path.name[-30:]!r}: {wrong}")
    signal.signal(signal.SIGPROF, before)
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 300, 50)
