"""The image, built and started without a container engine: buildah builds it, namespaces and chroot run it.

What an engine does for `docker run --read-only --cap-drop ALL --security-opt no-new-privileges` is done here by hand:
mount and process namespaces, the root filesystem read-only, the image's own user, no capabilities.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.process import ROOT, Finished

BASE = "localhost/python:base"
CERTIFICATES = "/etc/ssl/certs"

_SANDBOX = """
set -eu
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for directory in $VOLUMES; do mount -t tmpfs -o uid=65532,gid=65532,mode=0700 tmpfs "$root$directory"; done
exec chroot "$root" setpriv --reuid "${IMAGE_USER%:*}" --regid "${IMAGE_USER#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all env -i "$@"
"""


def missing() -> str | None:
    """Why no image can be built here."""
    if os.geteuid() != 0:
        return "building and starting the image takes root"
    absent = [tool for tool in ("buildah", "debootstrap", "unshare", "setpriv") if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


@dataclass(frozen=True)
class Images:
    """A store of images of its own; nothing of the machine's is touched."""

    folder: Path

    def buildah(self, *arguments: str) -> str:
        place = ("--root", f"{self.folder}/store", "--runroot", f"{self.folder}/run", "--storage-driver", "vfs")
        done = subprocess.run(["buildah", *place, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def build(self, target: str) -> Image:
        """Built by the first that asks, also among the worker processes of one test run."""
        self.folder.mkdir(exist_ok=True)
        place = self.folder / f"{target}.mounted"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                self._make_base()
                self._build(target)
                container = self.buildah("from", "--pull-never", f"localhost/idemproxy:{target}")
                place.write_text(self.buildah("mount", container))
        found = json.loads(self.buildah("inspect", "--type", "image", f"localhost/idemproxy:{target}"))
        return Image(Path(place.read_text()), found["Docker"]["config"])

    def _build(self, target: str) -> None:
        self.buildah(
            *("bud", "--isolation", "chroot", "--format", "docker", "--target", target),
            *("--build-arg", f"BASE={BASE}", "--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
            *("--env", f"PIP_CERT={CERTIFICATES}/ca-certificates.crt", "--tag", f"idemproxy:{target}", "."),
        )

    def _make_base(self) -> None:
        """Debian's Python stands in for the official image, which only a registry has."""
        if BASE in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        rootfs = self.folder / "rootfs"
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, "bookworm", str(rootfs), _debian_mirror()],
            capture_output=True,
            check=True,
        )
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(rootfs), "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(rootfs)


def _debian_mirror() -> str:
    """Where this machine gets Debian's packages from."""
    for place in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")):
        found = re.search(r"https?://\S+/debian(?=/?\s)", place.read_text()) if place.is_file() else None
        if found:
            return found[0]
    return "http://deb.debian.org/debian"


@dataclass(frozen=True)
class Image:
    root: Path
    config: dict[str, Any]

    def _command(self, arguments: list[str], settings: dict[str, str]) -> list[str]:
        own = [*self.config["Env"], *(f"IDEMPROXY_{name.upper()}={value}" for name, value in settings.items())]
        return ["sh", "-c", _SANDBOX, "sandbox", str(self.root), *own, *arguments]

    async def _spawn(self, arguments: list[str], settings: dict[str, str]) -> Process:
        volumes = " ".join(self.config.get("Volumes") or {})
        return await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *self._command(arguments, settings),
            env={"PATH": os.environ["PATH"], "VOLUMES": volumes, "IMAGE_USER": self.config["User"]},
            stdout=PIPE,
            stderr=PIPE,
        )

    async def run(self, *arguments: str, **settings: str) -> Finished:
        """Run a command in the image to its end."""
        process = await self._spawn(list(arguments), settings)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())

    @asynccontextmanager
    async def running(self, **settings: str) -> AsyncIterator[Container]:
        """What the image starts by itself, as process number 1; killed at the end if it still runs."""
        process = await self._spawn([*self.config["Entrypoint"], *self.config["Cmd"]], settings)
        try:
            yield Container(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@dataclass(frozen=True)
class Container:
    process: Process

    @property
    def pid(self) -> int:
        """The process inside, as the machine numbers it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def status(self) -> dict[str, str]:
        """What the kernel says about it: its user, its capabilities."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def stop(self, number: int) -> Finished:
        os.kill(self.pid, number)
        async with asyncio.timeout(60):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return Finished(self.process.returncode, out.decode(), err.decode())
