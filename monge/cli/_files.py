"""Events written to a file in the form its suffix asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.error import WordError

if TYPE_CHECKING:
    from ..run import Run


def write(run: Run, x: Any, out: Path) -> None:
    """Samples in the form the suffix asks for."""
    import numpy as np

    from ..show import picture

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        frame(run, x).to_csv(out, index=False)
    elif out.suffix == ".npz":
        decoded: Any = run.view.decode(x)
        arrays: Any = {"x": decoded} if isinstance(decoded, np.ndarray) else {
            name: column.to_numpy() for name, column in decoded.items()}
        np.savez_compressed(out, **arrays)
    elif out.suffix == ".png" and run.space.is_picture:
        picture.write_grid(out, x.numpy(), run.space)
    elif out.suffix == ".png" and run.space.shape == (2,):
        picture.write_points(out, x.numpy())
    elif out.suffix == ".png":
        raise WordError(f"{run.space} cannot be drawn as a picture; use -o samples.csv or .npz")
    else:
        raise WordError(f"cannot write {out.suffix or 'a file without a suffix'}; "
                        "use .png, .csv or .npz")


def frame(run: Run, x: Any) -> Any:
    """Samples as a table, one row each."""
    import pandas as pd

    decoded = run.view.decode(x)
    if isinstance(decoded, pd.DataFrame):
        return decoded
    flat = decoded.reshape(len(decoded), -1)
    names = run.view.columns
    if len(names) != flat.shape[1]:
        names = tuple(f"x{place}" for place in range(1, flat.shape[1] + 1))
    return pd.DataFrame(flat, columns=list(names))
