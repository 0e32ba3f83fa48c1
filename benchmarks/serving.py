"""Serving: throughput of `score` with and without common batches, clients at once, memory.

    python -m benchmarks.serving [--clients 200] [--seconds 60]

Each figure is of a server on 127.0.0.1 in a process of its own, asked by clients in another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import uvicorn

import monge
from monge.serve.app import PUBLIC, make_app
from monge.serve.listening import bind, server_config
from monge.serve.queueing import WINDOW
from monge.serve.security import Access, Guard, make_token
from monge.serve.served import load

from .results import keep


def serve(folder: str, port: int, token: str, window: float) -> None:
    app = Guard(
        make_app(load([folder]), window=window), Access.at(None, port, token, public=PUBLIC)
    )
    uvicorn.Server(server_config(app)).run([bind(None, port)])


def resident(pid: int) -> float:
    """Megabytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def load_test(
    address: str, token: str, body: bytes, clients: int, seconds: float, most: int | None = None
) -> dict[str, float]:
    """Closed loop: each client asks again as soon as it is answered."""
    times: list[float] = []
    status: dict[int, int] = {}
    place, path = address.removeprefix("http://").split("/", 1)
    host, port = place.split(":")
    request = (
        f"POST /{path} HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    end = time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.monotonic() < end and (most is None or len(times) < most):
            start = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(size)
            times.append(time.monotonic() - start)
            code = int(head.split(b" ")[1])
            status[code] = status.get(code, 0) + 1
        writer.close()

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.monotonic() - start
    return {
        "requests": len(times),
        "per_second": len(times) / took,
        "p50_ms": 1e3 * float(np.quantile(times, 0.5)),
        "p95_ms": 1e3 * float(np.quantile(times, 0.95)),
        **{f"status_{code}": count for code, count in status.items()},
    }


def measure(folder: str, window: float, clients: int, seconds: float, most: int | None) -> dict:
    token, context = make_token(), multiprocessing.get_context("spawn")
    with bind(None, 0) as free:
        port = free.getsockname()[1]
    process = context.Process(target=serve, args=(folder, port, token, window))
    process.start()
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(f"{base}/health", timeout=1)
                break
            except httpx.TransportError:
                time.sleep(0.2)
        row = monge.load(folder).sample(1)
        rows = row.tolist() if isinstance(row, np.ndarray) else row.to_dict("records")
        body = json.dumps({"rows": rows}).encode()
        address = f"{base}/v1/{Path(folder).name}/score"
        asyncio.run(load_test(address, token, body, 8, 2.0))
        before = resident(process.pid or 0)
        found = asyncio.run(load_test(address, token, body, clients, seconds, most))
        return found | {"megabytes_before": before, "megabytes_after": resident(process.pid or 0)}
    finally:
        process.terminate()
        process.join(20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        folder = f"{where}/maf"
        monge.fit("maf", "moons", budget="20steps", out=folder)
        single = measure(folder, 0.0, chosen.clients, min(chosen.seconds, 20), None)
        print("one by one", json.dumps({k: round(v, 2) for k, v in single.items()}), flush=True)
        shared = measure(folder, WINDOW, chosen.clients, chosen.seconds, None)
        print("in batches", json.dumps({k: round(v, 2) for k, v in shared.items()}), flush=True)
        print(f"ratio {shared['per_second'] / single['per_second']:.2f}")
        long = measure(folder, WINDOW, 32, 600.0, 10_000)
        figures = {"ratio": shared["per_second"] / single["per_second"]} | {
            f"{name}_{key}": value
            for name, found in (("single", single), ("shared", shared), ("long", long))
            for key, value in found.items()
        }
        keep("serving", figures)
        print("10000 requests", json.dumps({k: round(v, 2) for k, v in long.items()}))


if __name__ == "__main__":
    main()
