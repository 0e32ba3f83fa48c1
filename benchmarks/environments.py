"""An environment for each group of peers, since some cannot stand beside others.

    scripts/bench-env                # all of them
    scripts/bench-env flows text     # these

Each is a folder below build/bench that sees the packages of .venv, so torch is there once, and has
its own peers beside them under the constraints of constraints.txt. torchcfm asks for torchdyn,
which brings a torchvision that does not fit torch and with which transformers and diffusers do not
import; what is measured of torchcfm needs neither, so it is installed alone. At the end each peer
is imported, and no environment may have packages for graphics cards.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "bench"


@dataclass(frozen=True)
class Environment:
    """Peers that stand beside each other, and the benchmarks that need them."""

    benchmarks: tuple[str, ...]
    peers: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Peers that are installed without what they ask for."""
    modules: tuple[str, ...] = ()
    """What has to be importable."""


ENVIRONMENTS = {
    "none": Environment(
        (
            "trainer",
            "sampling",
            "pixelcnn",
            "wavenet",
            "attention",
            "gan",
            "tokens",
            "serving",
            "codes",
            "detection",
            "few_steps",
            "noised",
            "posteriors",
            "step_memory",
        )
    ),
    "text": Environment(
        ("gpt", "beam"), ("transformers",), modules=("transformers.GPT2LMHeadModel",)
    ),
    "diffusion": Environment(("diffusion",), ("diffusers",), modules=("diffusers.UNet2DModel",)),
    "flows": Environment(
        ("peers", "flows", "cnf"),
        ("nflows", "normflows", "zuko", "torchdiffeq", "pot"),
        ("torchcfm",),
        (
            "nflows.flows",
            "normflows",
            "zuko.flows",
            "torchdiffeq",
            "torchcfm.conditional_flow_matching",
        ),
    ),
    "transport": Environment(("transport",), ("pot", "ott-jax"), modules=("ot", "ott.geometry")),
    "vae": Environment(("vae",), ("pythae",), modules=("pythae.models.VAE",)),
}
GRAPHICS = ("nvidia", "cuda", "cupy", "triton")


def python_of(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def make(name: str) -> Path:
    """The Python of an environment, which is made if it is not there or has other peers."""
    here, python = ENVIRONMENTS[name], python_of(name)
    if not here.peers:
        return Path(sys.executable)
    wanted = hashlib.sha256(repr((here, sys.version)).encode()).hexdigest()
    stamp = FOLDER / name / "stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"{name}: {', '.join((*here.peers, *here.alone))}", flush=True)
    venv.create(FOLDER / name, clear=True, with_pip=True)
    inside = sysconfig.get_path("purelib", vars={"base": str(FOLDER / name)})
    seen = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    Path(inside, "beside.pth").write_text("\n".join(seen) + "\n")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    rules = ["-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, *rules, *here.peers], check=True)
    if here.alone:
        subprocess.run([*pip, *rules, "--no-deps", *here.alone], check=True)
    check(name)
    stamp.write_text(wanted)
    return python


def check(name: str) -> None:
    """Import every peer, and look for packages that must not be there."""
    here, python = ENVIRONMENTS[name], python_of(name)
    for module in here.modules:
        outer, _, last = module.rpartition(".")
        code = f"from {outer} import {last}" if last[:1].isupper() else f"import {module}"
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        done = subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{name}: {module} cannot be imported\n{done.stderr[-2000:]}")
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[0].lower() for line in listed.stdout.splitlines()[2:]]
    if wrong := [each for each in names if each.startswith(GRAPHICS)]:
        raise SystemExit(f"{name}: expected no packages for graphics cards, found {wrong}")


def main() -> None:
    for name in sys.argv[1:] or ENVIRONMENTS:
        if name not in ENVIRONMENTS:
            raise SystemExit(f"expected one of {', '.join(ENVIRONMENTS)}, found {name}")
        print(f"{name}: {make(name)}")


if __name__ == "__main__":
    main()
