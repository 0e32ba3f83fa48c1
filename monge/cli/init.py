"""Make a project folder: settings in a file, a script, a README and what git ignores"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from ..core.errors import UsageError
from ..run import storage
from ._config_file import scalar
from ._output import Console, common

RUN = """\
# A fit: `monge fit --config run.yaml`. What is typed after it comes first:
# `monge fit --config run.yaml --budget 10m width=128`.

model: made             # `monge models` lists them; `monge data {data}` recommends some
data: {data}
budget: 60s             # or 500steps, 3epochs; early stopping may end it sooner
seed: 0                 # same seed, same weights
# target: income        # predict this column (with model: predict.mlp)
# given: [label]        # condition on these fields
# ensemble: 5           # average the densities of five models

settings:               # `monge models made -v` explains each
  train.patience: 20    # stop after so many evaluations without improvement
  # width: 256
  # train.lr: 1e-3
  # data.missing: ignore
"""

SCRIPT = '''\
"""The same from Python: fit, print the log-likelihood and samples, write a report."""

import monge

run = monge.fit("made", {quoted}, budget="60s", out="runs/first")
print(run.log_likelihood().mean)
print(run.sample(5, seed=0))
monge.write_report(run)  # runs/first/report.html
'''

README = """\
# {name}

    monge data {data:<19} # how the data are read, and what to start with
    monge fit --config run.yaml    # settings are in run.yaml
    monge runs                     # runs are folders in runs/
    monge evaluate made-{stem}
    monge report made-{stem}
    python fit.py                  # the same from Python

Put your own data into `data/` and its name into run.yaml.
"""

IGNORED = "runs/\n__pycache__/\n"


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data", default="iris", show_default=True, help="The data of the project: a name or a path."
)
@common
def command(console: Console, folder: Path, data: str) -> None:
    """Make FOLDER with run.yaml, fit.py, README.md and an empty data/; no file is replaced."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"expected a new or empty folder, found files in {folder}; name another")
    if Path(data).exists():  # commands are typed in the folder
        data = Path(os.path.relpath(data, folder)).as_posix()
    words = {"data": data, "name": folder.resolve().name, "stem": Path(data).stem}
    files = {
        "README.md": README.format(**words),
        "run.yaml": RUN.format(data=scalar(data)),
        "fit.py": SCRIPT.format(quoted=json.dumps(data, ensure_ascii=False)),
        ".gitignore": IGNORED,
    }
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        storage.write(folder / name, text)
    console.result(
        {"folder": str(folder), "files": [*files, "data/"]},
        f"{folder}: {', '.join(files)}, data/\nnext: cd {folder} && monge fit --config run.yaml",
    )
