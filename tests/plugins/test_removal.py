"""Folders of which a program made what it could, and what lies beside them."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins.sandbox import remove_folder

DEPTH = 150


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.fixture
def few_files() -> Iterator[None]:
    """As few may be open as a worker of plugins has left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def nest(folder: Path, depth: int, name: str = "d") -> None:
    """Folders in each other, deeper than any path can say."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@pytest.mark.usefixtures("few_files")
def test_folders_in_folders(folder: Path) -> None:
    nest(folder, DEPTH, "a long name " * 20)
    shutil.rmtree(folder, ignore_errors=True)
    assert folder.exists(), "it is not to be had the usual way"
    remove_folder(str(folder))
    assert not folder.exists()


def test_all_kinds_of_files(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file").write_text("x")
    (folder / "a" / os.fsdecode(b"\xff\n")).write_text("x")
    os.mkfifo(folder / "a" / "b" / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    (folder / "a" / "dangling").symlink_to("nowhere")
    (folder / "a" / "loop").symlink_to("loop")
    remove_folder(str(folder))
    assert not folder.exists()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither into what they lead to, nor to its permissions."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "kept").write_text("x")
    beside.chmod(0o500)
    (folder / "deep").mkdir()
    for link in (folder / "link", folder / "deep" / "link"):
        link.symlink_to(beside)
    os.link(beside / "kept", folder / "hard")
    remove_folder(str(folder))
    assert not folder.exists() and (beside / "kept").read_text() == "x" and beside.stat().st_mode & 0o777 == 0o500
    link = tmp_path / "itself"
    link.symlink_to(beside)
    remove_folder(str(link))
    assert link.is_symlink() and (beside / "kept").exists()


def test_without_permissions(folder: Path) -> None:
    inner = folder / "a" / "b"
    (inner / "c").mkdir(parents=True)
    (inner / "file").write_text("x")
    for closed in (inner / "c", inner, folder / "a", folder):
        closed.chmod(0)
    remove_folder(str(folder))
    assert not folder.exists()


def test_what_is_not_there_raises_nothing(folder: Path) -> None:
    remove_folder(str(folder / "gone"))
    assert folder.exists()
