"""The memory that there is, and requests that need more."""

import math
import resource

import pytest

from monge.core import memory
from monge.core.errors import UsageError


def test_a_request_beyond_memory_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2_500_000_000)
    memory.require_memory("x", 2_500_000_000, "give less")
    with pytest.raises(UsageError, match=r"x needs 2.5 GB of memory, found 2.5 GB; give less"):
        memory.require_memory("x", 2_500_000_001, "give less")
    assert memory.gigabytes(1.5e9) == "1.5 GB"


def test_a_limit_of_the_process_counts(monkeypatch):
    whole = memory.available()
    assert 0 < whole < 2**50
    assert 0 < memory.used() < 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda _: (memory.used() + 10**6, 0))
    assert memory.available() <= 2 * 10**6
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 0))
    assert memory.available() == 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert memory.memory_limit() == math.inf


def test_a_limit_of_the_container_counts(monkeypatch, tmp_path):
    (tmp_path / "max").write_text("123456\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(memory, "MEMORY_LIMITS", (str(tmp_path / "none"), str(tmp_path / "x")))
    assert memory.available() > 123456
    monkeypatch.setattr(memory, "MEMORY_LIMITS", (str(tmp_path / "max"),))
    assert memory.available() == 123456


def test_errors_of_memory_are_recognised():
    assert memory.is_out_of_memory(MemoryError())
    assert memory.is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not memory.is_out_of_memory(RuntimeError("shape"))


def test_a_system_without_proc_has_its_pages(monkeypatch):
    def refuse(self, *args, **options):
        raise OSError(self)

    monkeypatch.setattr(memory.Path, "read_text", refuse)
    monkeypatch.setattr(memory, "MEMORY_LIMITS", ())
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PHYS_PAGES": 7, "SC_PAGE_SIZE": 100}.get)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert memory.used() == 0
    assert memory.available() == 700
