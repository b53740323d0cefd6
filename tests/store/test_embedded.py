"""The embedded PostgreSQL, really started: as root with private directories, as a user, on both loops."""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import pytest
import uvloop

from idemproxy.store import embedded
from idemproxy.store.embedded import EmbeddedError, EmbeddedPostgres

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another account")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# A process that owns a server: drops to a uid if told, starts, writes a row, reports one line, waits.
HOST = """
import asyncio, json, os, sys
from pathlib import Path
import asyncpg, uvloop
from idemproxy.store import embedded
plan = json.loads(sys.argv[1])
if plan["uid"] is not None:
    os.setgroups([]); os.setgid(plan["uid"]); os.setuid(plan["uid"])
if plan["death"] != "kernel":
    embedded._HAS_PDEATHSIG = False
if plan["death"] == "none":
    embedded._watch = lambda pid, resources: None
async def main():
    try:
        server = await embedded.EmbeddedPostgres.start(Path(plan["data_dir"]))
    except embedded.EmbeddedError as exc:
        print(json.dumps({"error": str(exc)}), flush=True)
        return
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
    await connection.execute("INSERT INTO kept VALUES (1)")
    print(json.dumps({"pid": server.pid, "dsn": server.dsn}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await connection.close()
    await server.stop()
(uvloop.run if plan["uvloop"] else asyncio.run)(main())
"""


class Host:
    """A process running HOST, and its report."""

    def __init__(self, process: subprocess.Popen[str], report: Mapping[str, str | int]) -> None:
        self.process = process
        self.report = report

    @property
    def server_pid(self) -> int:
        return int(self.report["pid"])


@contextlib.contextmanager
def host(
    data_dir: Path,
    *,
    uid: int | None = None,
    with_uvloop: bool = False,
    death: str = "kernel",
    python: str = sys.executable,
) -> Iterator[Host]:
    plan = {"data_dir": str(data_dir), "uid": uid, "uvloop": with_uvloop, "death": death}
    process = subprocess.Popen(
        [python, "-c", HOST, json.dumps(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(asyncpg.__file__).parents[1]}"},
    )
    try:
        assert process.stdout is not None
        yield Host(process, json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Gone or a zombie: process 1 of some containers collects nobody."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not shown.strip() or shown.strip().startswith("Z")


async def fetch(server: EmbeddedPostgres, query: str) -> object:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def run_query(data_dir: Path, query: str) -> object:
    server = await EmbeddedPostgres.start(data_dir)
    try:
        return await fetch(server, query)
    finally:
        await server.stop()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every account can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="idemproxy-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def python_for_everyone() -> str:
    """An interpreter that other accounts can execute: ours may be below a private home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        probe = subprocess.run(
            ["/bin/sh", "-c", 'exec "$0" -c "import ctypes"', candidate],
            capture_output=True,
            cwd="/",
            user=65534,
            group=65534,
            extra_groups=[],
        )
        if probe.returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} that other accounts can execute")


async def test_restart_keeps_data_and_settings_are_durable(tmp_path: Path) -> None:
    server = await EmbeddedPostgres.start(tmp_path / "data", settings={"work_mem": "5MB"})
    assert await fetch(server, "CREATE TABLE t AS SELECT 42 AS n") is None
    for name, value in {
        "fsync": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
        "server_encoding": "UTF8",
        "work_mem": "5MB",
    }.items():
        assert await fetch(server, f"SHOW {name}") == value
    assert await fetch(server, "SELECT current_user || '/' || current_database()") == "idemproxy/idemproxy"
    assert str(await fetch(server, "SHOW server_version")).startswith(server.version)
    assert server.log_path.stat().st_size > 0
    await server.stop()
    await server.stop()
    assert is_gone(server.pid)
    assert await run_query(tmp_path / "data", "SELECT n FROM t") == 42


def test_under_uvloop(tmp_path: Path) -> None:
    assert uvloop.run(run_query(tmp_path, "SELECT 1")) == 1


@pytest.mark.parametrize(
    "name", ["a b 'q' \"d\" 100%41 +&?#=\\ 日本é", "comma,comma", "x" * 200], ids=["odd", "comma", "long"]
)
async def test_any_path_works_and_leaves_no_socket_directory(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    server = await EmbeddedPostgres.start(data_dir)
    assert await fetch(server, "SELECT 1") == 1
    link = data_dir / "socket"
    elsewhere = link.readlink() if link.is_symlink() else None
    assert elsewhere is not None or "," not in name
    await server.stop()
    assert not link.is_symlink()
    assert elsewhere is None or not elsewhere.exists()


async def test_socket_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    data_dir = tmp_path / ("y" * 120)
    with host(data_dir) as killed:
        left = (data_dir / "socket").readlink()
        killed.process.kill()
        killed.process.wait()
    assert await run_query(data_dir, "SELECT count(*) FROM kept") == 1
    assert not left.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("with_uvloop", [False, True], ids=["asyncio", "uvloop"])
async def test_server_dies_with_its_parent(tmp_path: Path, number: signal.Signals, with_uvloop: bool) -> None:
    with host(tmp_path, with_uvloop=with_uvloop) as parent:
        parent.process.send_signal(number)
        parent.process.wait()
        wait_for(lambda: is_gone(parent.server_pid))
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()  # a clean shutdown
    assert await run_query(tmp_path, "SELECT count(*) FROM kept") == 1


def test_watcher_ends_the_server_where_there_is_no_death_signal(tmp_path: Path) -> None:
    with host(tmp_path, death="watcher") as parent:
        parent.process.kill()
        parent.process.wait()
        wait_for(lambda: is_gone(parent.server_pid))


def test_watcher_is_dismissed_at_stop(tmp_path: Path) -> None:
    with host(tmp_path, death="watcher") as parent:
        parent.process.communicate()
        assert parent.process.returncode == 0
        assert is_gone(parent.server_pid)


@needs_linux
@pytest.mark.parametrize("death", ["kernel", "none"])
async def test_start_waits_for_the_server_of_a_killed_process(tmp_path: Path, death: str) -> None:
    with host(tmp_path, death=death) as parent:
        parent.process.kill()
        parent.process.wait()
        assert await run_query(tmp_path, "SELECT count(*) FROM kept") == 1
        assert is_gone(parent.server_pid)


async def test_killed_server_recovers(tmp_path: Path) -> None:
    with host(tmp_path) as parent:
        os.kill(parent.server_pid, signal.SIGKILL)
        parent.process.kill()
        parent.process.wait()
    assert await run_query(tmp_path, "SELECT count(*) FROM kept") == 1


@contextlib.contextmanager
def stranger(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], user=uid if os.geteuid() == 0 else None)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@needs_linux
async def test_pid_file_naming_a_living_stranger_is_stale(tmp_path: Path) -> None:
    await run_query(tmp_path, "SELECT 1")
    cluster = tmp_path / "postgres"
    owner = cluster.stat()
    with stranger(owner.st_uid) as living:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (cluster / name).write_text(f"{living.pid}\n{cluster}\n1700000000\n5432\n\n\n")
            os.chown(cluster / name, owner.st_uid, owner.st_gid)
        assert await run_query(tmp_path, "SELECT 1") == 1
        assert living.poll() is None


async def test_data_directory_of_a_living_process_is_refused(tmp_path: Path) -> None:
    with host(tmp_path) as owner:
        with pytest.raises(EmbeddedError, match=rf"in use by another process \(pid {owner.process.pid}\)"):
            await EmbeddedPostgres.start(tmp_path)
        assert not is_gone(owner.server_pid)


async def test_missing_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_WHEELS", (("no_such_module", "bin"),))
    monkeypatch.setattr(embedded, "_SYSTEM_INSTALLS", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"idemproxy\[embedded\].*IDEMPROXY_DATABASE_URL"):
        await EmbeddedPostgres.start(tmp_path / "data")
    with pytest.raises(EmbeddedError, match="name the bin directory"):
        await EmbeddedPostgres.start(tmp_path / "data", bindir=tmp_path)


def test_newest_system_install_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major in ("9", "17", "15"):
        (tmp_path / major / "bin").mkdir(parents=True)
        for name in ("postgres", "initdb"):
            (tmp_path / major / "bin" / name).touch()
    monkeypatch.setattr(embedded, "_WHEELS", ())
    monkeypatch.setattr(embedded, "_SYSTEM_INSTALLS", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert embedded.find_bindir() == tmp_path / "17" / "bin"


async def test_cluster_of_another_major_version(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 12, but .* PostgreSQL \d\d; install .* dump and reload"):
        await EmbeddedPostgres.start(tmp_path)


async def test_directory_that_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "notes.txt").touch()
    with pytest.raises(EmbeddedError, match="not a PostgreSQL cluster; move it away"):
        await EmbeddedPostgres.start(tmp_path)


async def test_unfinished_clusters_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "postgres.new-abc"
    left.mkdir()
    (left / "PG_VERSION").write_text("18\n")
    assert await run_query(tmp_path, "SELECT 1") == 1
    assert not left.exists()


async def test_cancelled_start_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):  # in the middle of initdb
            await EmbeddedPostgres.start(tmp_path)
    assert not (tmp_path / "postgres").exists()
    assert await run_query(tmp_path, "SELECT 1") == 1


async def test_failed_start_says_why_and_lets_go(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"did not start: .*shared_buffers.*IDEMPROXY_DATABASE_URL"):
        await EmbeddedPostgres.start(tmp_path, settings={"shared_buffers": "nonsense"})
    assert await run_query(tmp_path, "SELECT 1") == 1


async def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="set IDEMPROXY_DATA_DIR"):
        await EmbeddedPostgres.start(tmp_path / "file")


@needs_root
async def test_root_with_a_private_data_directory(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    before = [(path, path.stat().st_mode, path.stat().st_uid) for path in (private, *private.parents)]
    server = await EmbeddedPostgres.start(private / "data")
    assert await fetch(server, "SELECT 1") == 1
    owner = (private / "data" / "postgres").stat()
    assert owner.st_uid in {pwd.getpwnam(name).pw_uid for name in ("postgres", "nobody")}
    assert stat.S_IMODE(owner.st_mode) == 0o700
    await server.stop()
    assert before == [(path, path.stat().st_mode, path.stat().st_uid) for path in (private, *private.parents)]


@needs_root
async def test_root_with_private_binaries(tmp_path: Path, open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "install").symlink_to(embedded.find_bindir().parent)
    monkeypatch.setattr(embedded, "_COPIES", open_dir / "copies")
    for _ in range(2):  # the second finds the copy
        server = await EmbeddedPostgres.start(tmp_path / "data", bindir=private / "install" / "bin")
        assert await fetch(server, "SELECT 1") == 1
        await server.stop()
    assert len(list((open_dir / "copies").iterdir())) == 1


@needs_root
def test_ordinary_user(open_dir: Path) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    os.chown(open_dir, uid, -1)
    with host(open_dir / "data", uid=uid, python=python_for_everyone()) as parent:
        assert "pid" in parent.report, parent.report
        assert (open_dir / "data" / "postgres").stat().st_uid == uid
        parent.process.kill()
        parent.process.wait()
        wait_for(lambda: is_gone(parent.server_pid))


@needs_root
def test_uid_without_an_account(open_dir: Path) -> None:
    os.chown(open_dir, 4242, -1)
    with host(open_dir / "data", uid=4242, python=python_for_everyone()) as parent:
        assert "uid 4242, which has no account" in str(parent.report.get("error")), parent.report
