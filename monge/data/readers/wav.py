"""wav files: RIFF chunks, of which `fmt ` describes the format of samples and `data` holds them.

PCM of 8 (unsigned), 16 or 24 bits (signed) and floats of 32 or 64 bits are read and written
exactly; for other formats an error names the command that converts them. Memory use is
proportional to the size of the file, whatever its header claims.

scipy writes floats. PCM is written here, as scipy has no 24 bits, and neither it nor `wave` pads a
chunk of odd length as RIFF requires. Files are read here, as libraries do not always return what
was recorded: scipy and soundfile read a file that is shorter than its header claims without an
error, scipy shifts 24 bits into int32 so that they look like 32-bit PCM, and `wave` has no floats.
soundfile also writes the current time into files of floats, so equal sounds give different files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...core.errors import DataError

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODES = {
    2: "ADPCM",
    6: "A-law",
    7: "mu-law",
    0x11: "ADPCM",
    0x31: "GSM",
    0x50: "MPEG",
    0x55: "MP3",
    0xFF: "AAC",
}
"""Compressed formats in wav files."""
STREAMED = 0xFFFFFFFF
"""The length in the header of a chunk if it was unknown when written."""
ZERO = {8: 0, 16: 2**15, 24: 2**23, 32: 0}
"""Added to a stored number to get a level, by bits; 32 and 64 bits are floats."""
Bits = Literal[8, 16, 24, 32]
"""Bits of samples in a dataset; a file may have 64-bit floats too."""


@dataclass(frozen=True)
class Clip:
    """The content of a file: uint8, int16, int32 (24 bits), float32 or float64, (T,) or
    (T, channels)."""

    samples: np.ndarray
    rate: int
    bits: Bits | Literal[64]

    @property
    def channels(self) -> int:
        return 1 if self.samples.ndim == 1 else self.samples.shape[1]


def load(path: Path) -> Clip:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise DataError(f"{path} does not start like a wav file (RIFF, WAVE); {convert(path)}")
    sizes, found = {}, {}
    for name, size, body in chunks(content):
        sizes[name], found[name] = size, body
    if len(found.get(b"fmt ", b"")) < 16 or b"data" not in found:
        raise DataError(f"{path} lacks a format or sound; download or record it again")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", found[b"fmt "])
    if code == EXTENSIBLE and len(found[b"fmt "]) >= 26:
        (code,) = struct.unpack_from("<H", found[b"fmt "], 24)
    if code not in (PCM, FLOAT) or (code, bits) not in READ:
        form = (
            CODES.get(code, f"the form {code:#x}")
            if code not in (PCM, FLOAT)
            else f"{bits}-bit {'floats' if code == FLOAT else 'PCM'}"
        )
        raise DataError(
            f"{path} holds {form}, not PCM of 8, 16 or 24 bits or floats; {convert(path)}"
        )
    if not channels or not rate or block != channels * bits // 8:
        raise DataError(
            f"{path} has a wrong header ({channels} channels, {rate} Hz, {block} "
            f"bytes for {bits} bits); {convert(path)}"
        )
    samples = READ[code, bits](complete(path, sizes[b"data"], found[b"data"], block))
    shaped = samples if channels == 1 else samples.reshape(-1, channels)
    return Clip(shaped, rate, bits)


def convert(path: Path) -> str:
    """The command that converts almost any sound file to a readable one."""
    return f"convert it with ffmpeg -i {path.name} -c:a pcm_s16le {path.stem}-pcm.wav"


def chunks(content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, stated length and body of each chunk; bodies are padded to an even length."""
    place = 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        place += 8
        yield name, size, content[place : place + size]
        place += size + size % 2


def complete(path: Path, size: int, body: bytes, block: int) -> bytes:
    """The bytes of the sound, checked against the header and for whole samples."""
    if (size != STREAMED and len(body) < size) or len(body) % block:
        raise DataError(
            f"expected the {size} bytes of sound that the header of {path} states, in whole "
            f"samples of {block}, found {len(body)}; download it again"
        )
    if not body:
        raise DataError(f"{path} has no samples; remove it")
    return body


def three_bytes(body: bytes) -> np.ndarray:
    """24-bit numbers as int32."""
    packed = np.zeros((len(body) // 3, 4), np.uint8)
    packed[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
    return packed.view("<i4")[:, 0] >> 8


READ: dict[tuple[int, int], Callable[[bytes], np.ndarray]] = {
    (PCM, 8): lambda body: np.frombuffer(body, np.uint8).copy(),
    (PCM, 16): lambda body: np.frombuffer(body, "<i2").astype(np.int16),
    (PCM, 24): three_bytes,
    (FLOAT, 32): lambda body: np.frombuffer(body, "<f4").astype(np.float32),
    (FLOAT, 64): lambda body: np.frombuffer(body, "<f8").astype(np.float64),
}


def save(path: Path, clip: Clip) -> None:
    """Write a file that `load` reads back exactly."""
    if clip.samples.dtype.kind == "f":
        from scipy.io import wavfile

        wavfile.write(path, clip.rate, clip.samples)
        return
    width, samples = clip.bits // 8, clip.samples
    body = samples.astype(f"<{samples.dtype.kind}{samples.itemsize}").tobytes()
    if clip.bits == 24:
        body = np.frombuffer(body, np.uint8).reshape(-1, 4)[:, :3].tobytes()
    block = clip.channels * width
    head = struct.pack(
        "<HHIIHH", PCM, clip.channels, clip.rate, clip.rate * block, block, clip.bits
    )
    parts = b"WAVE" + chunk(b"fmt ", head) + chunk(b"data", body)
    path.write_bytes(chunk(b"RIFF", parts))


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack("<4sI", name, len(body)) + body + b"\0" * (len(body) % 2)
