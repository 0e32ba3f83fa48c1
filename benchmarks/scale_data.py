"""Data larger than memory: preparing, an epoch, scoring and sampling, with peak memory.

    python -m benchmarks.scale_data                    # 1 000 000 rows; minutes
    python -m benchmarks.scale_data --rows 10000000    # the full size: a csv of 2 GB
    python -m benchmarks.scale_data csv --folder big   # one part; epoch, rows and parquet need csv

A mixed table is generated. Each measurement runs in a process of its own; time is wall time and
processor time, that of worker processes included; memory is the peak of what the process itself
holds and, beside it, with the mapped pages of files, which the system drops when it needs room.
Preparing is compared with pyarrow reading the same csv and writing it again; an epoch of made with
one on the same table in memory, per step. Pictures of 32x32 are prepared from as many files as
there are rows, at most 100 000, and the second pass over their batches is compared with that in
memory. Each line ends with its goal. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """
import json, os, resource, sys, threading, time
from pathlib import Path
place = Path(sys.argv[1])
own = [0]

def watch():  # memory that belongs to no file, which the system cannot drop
    while os.path.exists("/proc/self/status"):
        lines = open("/proc/self/status").read().splitlines()
        own[0] = max(own[0], *(int(line.split()[1]) for line in lines if "RssAnon" in line))
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
start, used = time.perf_counter(), time.process_time()
"""
TAIL = """
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "processor": time.process_time() - used
    + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "own": own[0] / 1024,
    **globals().get("more", {}),
}))
"""
REWRITE = """
import pyarrow as pa, pyarrow.csv as pc
with pc.open_csv(place / "big.csv") as file, pc.CSVWriter(place / "again.csv", file.schema) as out:
    for batch in file:
        out.write(batch)
"""
PARQUET = """
import pyarrow.csv as c, pyarrow.parquet as q
with c.open_csv(place / "big.csv") as file:
    with q.ParquetWriter(place / "big.parquet", file.schema) as out:
        for batch in file:
            out.write_batch(batch)
"""
PREPARE = """
from monge.data import loading as data
rows = len(data.prepare(place / sys.argv[2], place / sys.argv[3]))
more = {"size": sum(p.stat().st_size for p in (place / sys.argv[3]).rglob("*") if p.is_file())}
"""
EPOCH = """
import torch, monge
from monge.data import batches
from monge.data.readers import base
if sys.argv[2] == "memory":
    base.LARGE = batches.MAX_TOGETHER = 1 << 60
    what = place / "big.csv"
else:
    batches.MAX_TOGETHER = 0
    what = place / "big.monge"
steps = int(sys.argv[3])
from monge.run.run import start as begin
run = begin("made", str(what), out=place / sys.argv[4], seed=1)
trainer, batches = run.trainer, 0
trainer.model.initialise_from_data(trainer.rows.batch(torch.arange(1000)))
order = torch.randperm(len(trainer.rows))
size = trainer.batch_size
for place_ in range(2):  # the first pass over these rows warms up
    start, used = time.perf_counter(), time.process_time()
    for step in range(steps):
        index = order[step * size : (step + 1) * size]
        if len(index) < size:
            break
        loss = sum(term.mean() for term in trainer.model.loss(
            trainer.rows.batch(index, train=True)).values())
        loss.backward()
"""
PICTURES = """
import torch
from monge.data import loading as data
from monge.data.readers import base
base.LARGE = 1 << 60
view = data.open(place / sys.argv[2]).view()
rows, use = view.training(), lambda batch: batch.x.sum()
if sys.argv[3] == "train":
    from monge import registry
    from monge.train.trainer import Trainer
    vae = registry.find("latent.vae")
    config = vae.defaults(view.space)
    trainer = Trainer(config.config.override("net.width=64").build(view.space), rows, config.train)
    use = lambda batch: sum(
        term.mean() for term in trainer.model.loss(batch).values()).backward()
order = torch.randperm(len(rows))
for place_ in range(2):  # the second epoch counts
    start, used = time.perf_counter(), time.process_time()
    for index in order.split(128):
        use(rows.batch(index, train=True))
"""
FIT = """
import monge
monge.fit("made", str(place / "big.monge"), out=place / "run", budget="200steps", width=32)
"""
COMMAND = """
from monge.data.readers import base
base.LARGE = 1  # smaller tables than the full one are prepared too
os.environ["MONGE_CACHE"] = str(place / "cache")
from monge.cli.main import attempt
attempt(sys.argv[2:])
"""


def generate(path: Path, rows: int) -> None:
    """A table of numbers, names, flags, whole numbers, empty cells and zeros, about 200 bytes a
    row."""
    import numpy as np
    import pandas as pd

    rng, piece = np.random.default_rng(0), 200_000
    names = np.array([f"city-{i:03}" for i in range(300)])
    jobs = np.array(["engineer", "teacher", "nurse", "driver", "clerk", "farmer", "student"])
    for start in range(0, rows, piece):
        n = min(piece, rows - start)
        base = rng.normal(size=n)
        table = pd.DataFrame({"id": np.arange(start + 1, start + n + 1)})
        table["age"] = np.clip(45 + 15 * base + rng.normal(size=n), 0, 99).astype(int)
        table["city"] = names[(rng.random(n) ** 2 * 300).astype(int)]
        table["job"] = rng.choice(jobs, n)
        table["married"] = rng.choice(["yes", "no"], n)
        table["gain"] = np.where(rng.random(n) < 0.9, 0, rng.lognormal(8, 1, n).round(2))
        for place in range(9):
            table[f"x{place}"] = base * place / 9 + rng.normal(size=n)
        table["visits"] = rng.poisson(3, n)
        table["weight"] = (70 + 10 * rng.normal(size=n)).round(1)
        table.loc[rng.random(n) < 0.05, "weight"] = np.nan
        table.to_csv(path, mode="a", header=not start, index=False)


def draw(folder: Path, count: int) -> None:
    """Pictures of ten classes."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for place in range(count):
        shelf = folder / f"class{place % 10}"
        shelf.mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(
            Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8)).resize((32, 32))
        )
        Image.fromarray(pixels).save(shelf / f"{place:07}.png", compress_level=1)


def measure(script: str, place: Path, *words: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script + TAIL, str(place), *words],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def show(what: str, found: dict[str, float], more: str = "") -> None:
    times = f"{found['seconds']:9.1f} s {found['processor']:9.1f} s"
    memory = f"{found['own']:7.0f} MB {found['peak']:7.0f} MB"
    print(f"{what:34}{times} {memory}  {more}", flush=True)


def csv(place: Path, options: argparse.Namespace) -> None:
    again = measure(REWRITE, place)
    (place / "again.csv").unlink()
    show("pyarrow: read and write again", again)
    made = measure(PREPARE, place, "big.csv", "big.monge")
    ratio = made["processor"] / again["processor"]
    goal = "goal 1.5 and 600 MB"
    show("prepare csv", made, f"{ratio:.2f} of pyarrow, {made['size'] / 1e9:.2f} GB; {goal}")
    (place / "csv.json").write_text(json.dumps(made))


def parquet(place: Path, options: argparse.Namespace) -> None:
    measure(PARQUET, place)
    columns = measure(PREPARE, place, "big.parquet", "columns.monge")
    shutil.rmtree(place / "columns.monge")
    ratio = columns["processor"] / json.loads((place / "csv.json").read_text())["processor"]
    show("prepare parquet", columns, f"{ratio:.2f} of csv; goal 0.5")


def epoch(place: Path, options: argparse.Namespace) -> None:
    steps = str(options.steps)
    inside = measure(EPOCH, place, "memory", steps, "a")
    outside = measure(EPOCH, place, "prepared", steps, "b")
    show(f"{steps} steps of made, in memory", inside)
    ratio = outside["processor"] / inside["processor"]
    show(f"{steps} steps of made, prepared", outside, f"{ratio:.2f} of memory; goal 1.1")


def rows(place: Path, options: argparse.Namespace) -> None:
    show("fit made, 200 steps, prepared", measure(FIT, place))
    run, n = str(place / "run"), str(options.samples or options.rows // 10)
    out = str(place / "scores.csv")
    scored = measure(COMMAND, place, "score", run, str(place / "big.csv"), "-o", out)
    show("score csv", scored, "goal 1000 MB")
    out = str(place / "new.csv")
    sampled = measure(COMMAND, place, "sample", run, "-n", n, "-o", out)
    show(f"sample {n} rows", sampled, "goal 1000 MB")


def pictures(place: Path, options: argparse.Namespace) -> None:
    draw(place / "photos", count := min(options.rows, 100_000))
    made = measure(PREPARE, place, "photos", "photos.monge")
    show(f"prepare {count} pictures", made, f"{made['size'] / 1e9:.2f} GB")
    for use, name, goal in (("train", "of a small vae", "; goal 1.2"), ("read", "only read", "")):
        inside, outside = (
            measure(PICTURES, place, what, use) for what in ("photos", "photos.monge")
        )
        show(f"second epoch {name}, in memory", inside)
        ratio = outside["processor"] / inside["processor"]
        show(f"second epoch {name}, prepared", outside, f"{ratio:.2f} of memory{goal}")


PARTS = {"csv": csv, "parquet": parquet, "epoch": epoch, "rows": rows, "pictures": pictures}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="by default all")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=200, help="of the epoch that are timed")
    parser.add_argument("--samples", type=int, default=0, help="by default a tenth of the rows")
    parser.add_argument("--folder", type=Path, help="keeps the files, for other parts later")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "big.csv").exists() and options.parts != ["pictures"]:
            generate(place / "part.csv", options.rows)
            (place / "part.csv").rename(place / "big.csv")
            size = (place / "big.csv").stat().st_size
            print(f"{options.rows} rows, {size / 1e9:.2f} GB of csv")
        print(
            f"{'':34}{'wall':>11} {'processor':>11} {'memory':>10} {'with files':>10}", flush=True
        )
        for part in options.parts or PARTS:
            PARTS[part](place, options)


if __name__ == "__main__":
    main()
