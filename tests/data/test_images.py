"""Pictures: folders, idx files and what may follow a plus."""

import gzip
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data.readers import base

rng = np.random.default_rng(0)


def pixels(n, *shape):
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8)


def save(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i}.png")


def idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(header + array.tobytes())


def test_class_folders_are_labels(tmp_path):
    cats, dogs = pixels(4, 6, 5, 3), pixels(3, 6, 5, 3)
    save(tmp_path / "cat", cats)
    save(tmp_path / "dog", dogs)
    source = data.open(tmp_path)
    assert source.target == "label"
    assert source.fields["label"].codec.names == ("cat", "dog")
    view = source.view()
    assert (view.space.kind, view.space.size, view.space.shape) == ("levels", 256, (3, 6, 5))
    assert np.array_equal(view.decode(view.split("all").whole().x), np.concatenate([cats, dogs]))
    assert len(view.space.mean) == 3
    assert source.tensors["image"].dtype == torch.uint8


def test_loose_grey_images_and_given_splits(tmp_path):
    save(tmp_path / "loose", pixels(5, 4, 4))
    source = data.open(tmp_path / "loose")
    assert list(source.fields) == ["image"]
    assert source.view().space.shape == (1, 4, 4)
    save(tmp_path / "shelves" / "train" / "a", pixels(6, 4, 4))
    save(tmp_path / "shelves" / "train" / "b", pixels(6, 4, 4))
    save(tmp_path / "shelves" / "test" / "a", pixels(2, 4, 4))
    shelves = data.open(tmp_path / "shelves")
    assert shelves.has_splits
    assert len(shelves.splits["test"]) == 2


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turned a quarter
    for i in range(3):
        Image.fromarray(pixels(1, 4, 9, 3)[0]).save(tmp_path / f"{i}.jpg", exif=exif)
    assert data.open(tmp_path).view().space.shape == (3, 9, 4)


def test_mixed_sizes_are_refused_with_the_word_that_mends_them(tmp_path):
    save(tmp_path, [*pixels(2, 8, 8), pixels(1, 12, 9)[0]])
    with pytest.raises(DataError, match=r"8x8 and 2.png is 9x12.*\+resize64"):
        data.open(tmp_path)
    source = data.open(f"{tmp_path}+resize6")
    assert source.name == f"{tmp_path.name}+resize6"
    assert source.view().space.shape == (1, 6, 6)


def test_bad_images_get_one_sentence(tmp_path):
    save(tmp_path / "a", pixels(3, 8, 8))
    (tmp_path / "a" / "broken.png").write_bytes((tmp_path / "a" / "0.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"broken.png"):
        data.open(tmp_path / "a")
    save(tmp_path / "b", pixels(3, 8, 8))
    save(tmp_path / "b" / "class", pixels(3, 8, 8))
    with pytest.raises(DataError, match="class folders"):
        data.open(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.pdf").write_text("words")
    with pytest.raises(DataError, match="idx files, images"):
        data.open(tmp_path / "c")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        data.open(tmp_path / "deep.png")


def png(path, width, height, bits, colour, body):
    """A png made of its parts; colour 2 is RGB, 4 grey with alpha."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(body))
        + chunk(b"IEND", b"")
    )


def tiff(path, values):
    """An RGB tiff of one row, of as many bits as the values have."""
    bits, width, strip = 8 * values.itemsize, values.shape[1], 200
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, 1),
        (258, 3, 3, 150),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, strip),
        (277, 3, 1, 3),
        (278, 4, 1, 1),
        (279, 4, 1, values.nbytes),
    ]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    body = head + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    body = body.ljust(150, b"\0") + struct.pack("<HHH", bits, bits, bits)
    path.write_bytes(body.ljust(strip, b"\0") + values.tobytes())


def deep(path):
    """An image of 16 bits per channel and several channels, in the format of `path`."""
    values = rng.integers(0, 2**16, (1, 5, 3), dtype=np.uint16)
    if path.suffix == ".png":
        png(path, 5, 1, 16, 2, b"\0" + values.astype(">u2").tobytes())
    elif path.suffix == ".tif":
        tiff(path, values)
    else:
        most = 65535 if path.stem == "full" else 1023
        body = (values.clip(max=most)).astype(">u2").tobytes()
        path.write_bytes(b"P6 5 1 %d\n" % most + body)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "full.ppm", "ten.ppm"])
def test_colours_of_16_bits_are_refused_not_cut(tmp_path, name):
    deep(tmp_path / name)
    with Image.open(tmp_path / name) as file:  # Pillow cuts them without a word
        assert np.array(file).dtype == np.uint8
    with pytest.raises(DataError, match=rf"{name}, found more than 8 bits"):
        data.open(tmp_path / name)


def test_grey_with_alpha_of_16_bits_is_refused(tmp_path):
    png(tmp_path / "a.png", 2, 1, 16, 4, b"\0" + bytes(range(8)))
    with pytest.raises(DataError, match="8 bits"):
        data.open(tmp_path / "a.png")


def test_colours_of_8_bits_are_read_by_every_format(tmp_path):
    values = pixels(1, 1, 5, 3)[0]
    tiff(tmp_path / "a.tif", values)
    png(tmp_path / "b.png", 5, 1, 8, 2, b"\0" + values.tobytes())
    (tmp_path / "c.ppm").write_bytes(b"P6 5 1 255\n" + values.tobytes())
    Image.fromarray(values).save(tmp_path / "d.bmp")
    Image.fromarray(values).save(tmp_path / "e.webp", lossless=True)
    found = data.open(tmp_path).tensors["image"]
    assert np.array_equal(found.numpy(), np.stack([np.moveaxis(values, -1, 0)] * 5))


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tif"])
def test_several_frames_are_refused_and_one_is_read(tmp_path, name):
    frames = [Image.fromarray(image) for image in pixels(3, 6, 6, 3)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=rf"{name}, found several frames"):
        data.open(tmp_path / name)
    (tmp_path / "one").mkdir()
    for i in range(3):
        frames[i].save(tmp_path / "one" / f"{i}{name}", save_all=True)
    assert data.open(tmp_path / "one").tensors["image"].shape == (3, 3, 6, 6)


def test_the_images_of_a_single_gif_frame_are_as_pillow_decodes_them(tmp_path):
    for i, image in enumerate(pixels(3, 6, 6)):
        Image.fromarray(image).save(tmp_path / f"{i}.gif")
    expected = [np.array(Image.open(tmp_path / f"{i}.gif").convert("RGB")) for i in range(3)]
    found = data.open(tmp_path).tensors["image"].numpy()
    assert np.array_equal(found, np.moveaxis(expected, -1, 1)) or np.array_equal(
        np.repeat(found, 3, 1), np.moveaxis(expected, -1, 1)
    )


def test_the_first_image_of_a_jpg_with_previews_is_read(tmp_path):
    for i in range(3):
        both = [Image.fromarray(image) for image in pixels(2, 8, 8, 3)]
        both[0].save(tmp_path / f"{i}.mpo", save_all=True, append_images=both[1:])
        (tmp_path / f"{i}.mpo").rename(tmp_path / f"{i}.jpg")
        with Image.open(tmp_path / f"{i}.jpg") as file:
            assert file.n_frames == 2
    assert data.open(tmp_path).view().space.shape == (3, 8, 8)


@pytest.mark.parametrize("side", [10_000, 30_000])
def test_a_image_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch, side):
    png(tmp_path / "a.png", side, side, 8, 2, bytes(1000))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    for path in (tmp_path / "a.png", tmp_path):
        with pytest.raises(DataError, match=r"a.png .*pixels"):
            data.open(path)


def test_images_that_memory_cannot_hold_are_refused_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "available", lambda: 4 * 3000)
    save(tmp_path, pixels(4, 30, 30))
    with pytest.raises(DataError, match="3e-06 GB"):
        data.open(tmp_path)
    assert len(data.open(f"{tmp_path}+resize6")) == 4


def test_what_the_suffix_does_not_stand_for_is_not_decoded(tmp_path):
    Image.fromarray(pixels(1, 8, 8, 3)[0]).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a.png"):
        data.open(tmp_path / "a.png")


def test_idx_files(tmp_path):
    images, labels = pixels(20, 5, 5), np.arange(20, dtype=np.uint8) % 10
    idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[:6])
    idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels[:6])
    source = data.open(tmp_path)
    assert {split: len(rows) for split, rows in source.splits.items()} == {
        "train": 18,
        "valid": 2,
        "test": 6,
    }
    assert np.array_equal(source.view().decode(source.view().split("test").whole().x), images[:6])
    assert source.view(target="label").split("test").whole().x.tolist() == labels[:6].tolist()
    alone = data.open(tmp_path / "train-images-idx3-ubyte.gz")
    assert list(alone.fields) == ["image"]
    short = tmp_path / "short-idx3-ubyte"
    short.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 9, 5, 5) + b"1")
    with pytest.raises(DataError, match="cannot be read as idx"):
        data.open(short)


def test_binarise_is_fresh_in_training_and_fixed_elsewhere():
    rows = data.open("digits+binarise").view().split("train")
    index = torch.arange(200)
    assert rows.space.kind == "binary"
    torch.manual_seed(0)
    first, second = rows.batch(index, train=True).x, rows.batch(index, train=True).x
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(rows.batch(index, train=True).x, first)
    fixed = rows.batch(index).x
    assert torch.equal(fixed, rows.batch(index).x)
    assert torch.equal(fixed[50:60], rows.batch(index[50:60]).x)
    assert set(fixed.unique().tolist()) == {0.0, 1.0}
    chance = data.open("digits").view().split("train").batch(index).x / 16
    averaged = torch.stack([rows.batch(index, train=True).x for _ in range(200)]).mean(0)
    error = (averaged - chance) / ((chance * (1 - chance) / 200).sqrt() + 1e-3)
    assert error.abs().max() < 6
    assert abs((fixed - chance).mean()) < 0.01


def test_binarise_fixed_is_what_binarise_scores():
    fixed, fresh = (
        data.open(f"digits+{word}").view().split("train")
        for word in ("binarise-fixed", "binarise")
    )
    index = torch.arange(100)
    assert torch.equal(fixed.batch(index, train=True).x, fresh.batch(index).x)
    assert torch.equal(fixed.batch(index, train=True).x, fixed.batch(index).x)


def test_threshold_resize_and_grey(tmp_path):
    plain = data.open("digits").view().split("all").whole().x
    half = data.open("digits+threshold").view()
    assert torch.equal(half.split("all").whole().x, (plain > 8).float())
    assert half.space.kind == "binary"
    small = data.open("digits+resize4").view()
    assert (small.space.kind, small.space.size, small.space.shape) == ("levels", 17, (1, 4, 4))
    assert (small.split("all").whole().x.mean() - plain.mean()).abs() < 0.2
    save(tmp_path, np.full((3, 4, 4, 3), [200, 100, 50], np.uint8))
    grey = data.open(f"{tmp_path}+grey").view()
    assert grey.space.shape == (1, 4, 4)
    assert grey.split("all").whole().x.unique().tolist() == [124.0]
    assert data.open("digits+resize4+binarise").name == "digits+resize4+binarise"


@pytest.mark.parametrize(
    ("what", "error", "sentence"),
    [
        ("digits+binarize", UsageError, "did you mean binarise"),
        ("digits+resize", UsageError, r"written \+resize64"),
        ("digits+threshold3", UsageError, r"written \+threshold"),
        ("iris+binarise", DataError, "needs levels"),
        ("digits+binarise+resize4", DataError, "write it earlier"),
    ],
)
def test_words_that_do_not_fit(what, error, sentence):
    with pytest.raises(error, match=sentence):
        data.open(what)
