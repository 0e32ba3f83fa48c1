"""What the attacks share: their command line, their last line, and forked processes."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable

import torch

Seed = int | str


def main(
    doc: str, attack: Callable[[int, Seed], list[str]], tries: int, piece: int | None = None
) -> None:
    """Run an attack with --tries and --seed, print what failed and how many were tried. One that
    is made in pieces says after each how far it is, and ends after --seconds."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=tries)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no piece starts after")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, tried, failed = time.monotonic(), 0, 0
    while tried < options.tries and time.monotonic() - start < options.seconds:
        count = min(piece or options.tries, options.tries - tried)
        wrong = attack(count, f"{options.seed}.{tried}" if tried else options.seed)
        tried, failed = tried + count, failed + len(wrong)
        print("".join(f"{line}\n" for line in wrong), end="")
        print(f"seed {options.seed}: {tried} tried, {failed} failed", flush=True)
    sys.exit(bool(failed))


def fork(work: Callable[[], int | None]) -> int:
    """The number of a process that does `work` and prints nothing; it exits with what `work`
    returns. A process that is forked has torch imported, so that many can be tried."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        code = work() or 0
    finally:
        os._exit(code)


def end(process: int, after: float | None = None, limit: float = 120.0) -> int:
    """The exit code of a process, which is killed `after` so many seconds; one that takes longer
    than `limit` is killed too and has the code of SIGALRM."""
    started, sign = time.monotonic(), signal.SIGKILL
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        spent = time.monotonic() - started
        if spent > min(limit, limit if after is None else after):
            os.kill(process, sign)
            _, status = os.waitpid(process, 0)
            return -signal.SIGALRM if spent > limit else os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
