"""Colour transfer between two images: pixels are rows, and a transport map moves them.

Two images are painted here, a dawn and a wood; the entropic map between their unpaired pixels
moves each colour of the first to one of the second, and the shapes stay.

    python -m examples.colour [-o colour.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import monge
from monge.core.batch import Batch

HEIGHT, WIDTH = 120, 180


def blend(share: NDArray, first: tuple[int, ...], second: tuple[int, ...]) -> NDArray:
    """(H, W) shares as colours between two, (H, W, 3)."""
    return np.array(first) + share[..., None] * (np.array(second) - np.array(first))


def dawn() -> NDArray:
    """A sky from violet to orange with a sun, above the sea."""
    y, x = np.mgrid[0 : 1 : HEIGHT * 1j, 0 : 1.5 : WIDTH * 1j]
    sky = blend(np.clip(y / 0.65, 0, 1), (58, 30, 96), (250, 160, 90))
    sun = np.clip(1.3 - np.hypot(x - 1.0, y - 0.48) / 0.1, 0, 1)
    sky += sun[..., None] * (np.array((255, 240, 190)) - sky)
    waves = 0.5 + 0.5 * np.sin(60 * y + 4 * np.sin(9 * x))
    sea = blend(waves * np.clip(2 - 1.6 * y, 0, 1), (24, 22, 60), (190, 110, 100))
    return np.where((y > 0.65)[..., None], sea, sky)


def wood(rng: np.random.Generator) -> NDArray:
    """Dark trunks in front of leaves in the light."""
    y, x = np.mgrid[0 : 1 : HEIGHT * 1j, 0 : 1.5 : WIDTH * 1j]
    leaves = 0.5 + 0.5 * np.sin(23 * x + 5 * np.sin(17 * y)) * np.sin(19 * y + 3 * np.sin(13 * x))
    image = blend(np.clip(leaves * (1.2 - y), 0, 1), (18, 60, 28), (206, 226, 110))
    for place in (0.2, 0.55, 0.9, 1.3):
        trunk = np.abs(x - place - 0.03 * np.sin(6 * y)) < 0.04
        image[trunk] = blend(np.clip(0.4 + 6 * (x - place), 0, 1), (40, 26, 16), (110, 80, 52))[
            trunk
        ]
    return image + rng.normal(0, 6, image.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("colour.png"))
    out = parser.parse_args().out
    images = [
        np.clip(image, 0, 255).astype(np.float32)
        for image in (dawn(), wood(np.random.default_rng(0)))
    ]
    source, target = (image.reshape(-1, 3) for image in images)
    run = monge.fit("entropic_map", (source, target), "anchors=1500", "epsilon=0.01")
    parts = torch.from_numpy(source).split(4000)
    moved = torch.cat([run.model.mean({"x": Batch(part)}) for part in parts])
    images.append(moved.numpy().reshape(HEIGHT, WIDTH, 3))
    sheet = np.concatenate([image.clip(0, 255).astype(np.uint8) for image in images], 1)
    Image.fromarray(sheet).save(out)
    print(out)


if __name__ == "__main__":
    main()
