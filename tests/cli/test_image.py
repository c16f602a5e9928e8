"""Tests for the container image, which buildah builds and runs. It contains the published modules but no other project
files.

No image registry is used. The base image in the Containerfile is replaced by an image with this machine's Python, and
the few programs and libraries that the build steps need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.mitmdump import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PREFIX = Path(sys.base_prefix).resolve()
PROGRAMS = ("sh", "rm", "useradd")
SETTINGS = ("passwd", "group", "shadow", "login.defs", "nsswitch.conf", "ssl/certs/ca-certificates.crt", "pip.conf")
LOADED = (
    *("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"),
    *("libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libm.so.6"),
)
# Parts of a Python installation that the image does not need: its tests, packages installed on this machine, and files
# for compilers and graphical interfaces.
LEFT_OUT = shutil.ignore_patterns(
    "test", "site-packages", "__pycache__", "*.a", "idlelib", "tkinter", "include", "share"
)


def buildah(*words: str | Path) -> str:
    """Run buildah and return its output. It needs no privileges beyond those for ``chroot``."""
    run = subprocess.run(["buildah", *map(str, words)], capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


def libraries(files: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that these files are linked to."""
    shown = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"^\s(?:\S+ => )?(/\S+) \(0x", shown, re.MULTILINE)}


def furnish(root: Path) -> None:
    """Copy this machine's Python, and the programs that the Containerfile calls, into an empty folder."""
    for top in (path for path in Path("/").iterdir() if path.is_symlink() and str(path.readlink()).startswith("usr/")):
        (root / top.readlink()).mkdir(parents=True)
        (root / top.name).symlink_to(top.readlink())
    shutil.copytree(PREFIX, root / PREFIX.relative_to("/"), symlinks=True, ignore=LEFT_OUT)
    for packages in PREFIX.glob("lib/python3.*/site-packages"):
        for path in packages.glob("pip*"):
            shutil.copytree(path, root / path.relative_to("/"))
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    linked = libraries([*programs, Path(sys.executable).resolve(), *PREFIX.glob("lib/python3.*/lib-dynload/*.so")])
    # These libraries are loaded by name at run time, or are needed by the installed packages.
    linked |= {path.parent / name for path in linked if path.name == "libc.so.6" for name in LOADED}
    settings = [path for name in SETTINGS if (path := Path("/etc") / name).is_file()]
    for path in (*programs, *linked, *settings):
        if path.exists() and not path.is_relative_to(PREFIX):
            (root / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.relative_to("/"))
    for name in ("tmp", "home", "root"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the ID of the image that the Containerfile builds on the local base image."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs buildah, as root")
    if Path("/usr") == PREFIX:
        pytest.skip("needs a Python in a folder of its own")
    folder = tmp_path_factory.mktemp("image")
    furnish(folder / "base")
    base = f"localhost/toolsim-base:{os.getpid()}"
    container = buildah("from", "scratch")
    images: list[str] = []
    try:
        buildah("copy", container, folder / "base", "/")
        buildah("config", "--env", f"PATH={PREFIX}/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
        images.append(buildah("commit", "-q", container, base))
        variables = [word for name in os.environ if name.startswith("PIP_") for word in ("--env", name)]
        build = ("bud", "-q", "--isolation", "chroot", "--from", base, *variables)
        images.append(buildah(*build, "-f", ROOT / "addon/deploy/Containerfile", ROOT))
        yield images[-1]
    finally:
        buildah("rm", container)
        for made in reversed(images):
            buildah("rmi", "-f", made)


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    made = buildah("from", image)
    yield made
    buildah("rm", made)


def test_image_runs_the_demo(container: str) -> None:
    """The image, started as in the Containerfile, runs the demo as an unprivileged user."""
    shown = buildah("run", "--isolation", "chroot", container, "--", "toolsim", "demo", "--once", "--port", "0")
    assert "played 14 turns" in shown
    assert buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", "echo $HOME") == "/home/toolsim"


READ_ONLY = """
set -e
mount --make-rprivate /
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
mount -t tmpfs tmpfs "$0/tmp"
exec env -i "PATH=$1" chroot --userspec=toolsim "$0" sh -c '(: > /home/toolsim/x) || exec "$@"' "${@:2}"
"""


def test_read_only_root_without_home(container: str) -> None:
    """The image's command runs with a read-only root file system, where it can write only to ``/tmp``."""
    top = buildah("mount", container)
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    [path] = [value.removeprefix("PATH=") for value in config["Env"] if value.startswith("PATH=")]
    words = [*config["Entrypoint"], *config["Cmd"], "--once", "--port", "0"]
    command = ["unshare", "-m", "bash", "-c", READ_ONLY, top, path, "sh", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "played 14 turns" in run.stdout
    # The script prints this message only if the root file system was read-only.
    assert "Read-only file system" in run.stderr


def modules(folder: Path) -> list[Path]:
    """Return the files of toolsim's packages below a folder."""
    paths = [*folder.glob("toolsim*.py"), *folder.glob("toolsim*/**/*")]
    return sorted(path.relative_to(folder) for path in paths if path.is_file() and path.suffix not in (".pyc", ".md"))


def test_image_contains_package_without_checkout(container: str) -> None:
    """The image contains toolsim's modules among the installed packages, but not the checkout."""
    top = Path(buildah("mount", container))
    assert list((top / "src").iterdir()) == []
    [packages] = top.glob(f"{PREFIX.relative_to('/')}/lib/python3.*/site-packages")
    assert modules(packages) == modules(ROOT / "addon")
