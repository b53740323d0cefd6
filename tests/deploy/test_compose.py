"""docker-compose.yml is what compose takes, and its services fit each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from idemproxy import settings
from tests.support.manifests import ROOT, Document, documents, image_environment
from tests.support.process import python

(COMPOSE,) = documents(ROOT / "docker-compose.yml")
SERVICES: dict[str, Document] = COMPOSE["services"]
SCHEMA = json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
PROMTOOL = shutil.which("promtool")


def compose_command() -> list[str] | None:
    """A compose that can load the file without an engine: docker's plugin, or the program that it was before."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is not None:
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    return None


def profiles(service: str) -> set[str]:
    return set(SERVICES[service].get("profiles", []))


def mounts() -> list[tuple[str, str]]:
    """Source and target of everything that comes from this repository."""
    pairs = [volume.split(":")[:2] for service in SERVICES.values() for volume in service.get("volumes", [])]
    return [(source, target) for source, target in pairs if source.startswith("./")]


def test_the_file_has_the_shape_of_the_compose_specification() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


def test_a_misspelt_key_would_be_found() -> None:
    wrong = {**COMPOSE, "services": {"proxy": {**SERVICES["proxy"], "dependson": []}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


@pytest.mark.skipif(compose_command() is None, reason="docker compose is not installed")
def test_compose_itself_loads_it() -> None:
    command = compose_command()
    assert command is not None
    profiles = ("--profile", "observability", "--profile", "ha")
    done = subprocess.run([*command, *profiles, "config"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"].keys() == SERVICES.keys()


def test_up_alone_gives_postgres_the_api_and_the_proxy() -> None:
    assert {name for name in SERVICES if not profiles(name)} == {"postgres", "migrate", "api", "proxy"}
    assert {name for name in SERVICES if profiles(name) == {"observability"}} == {"prometheus", "grafana"}
    assert {name for name in SERVICES if profiles(name) == {"ha"}} == {"standby", "synchronous"}


def test_everything_starts_in_order_of_health() -> None:
    assert SERVICES["proxy"]["depends_on"] == {
        "migrate": {"condition": "service_completed_successfully"},
        "api": {"condition": "service_healthy"},
    }
    for name, service in SERVICES.items():
        needed = service.get("depends_on", {})
        for other in needed:
            assert profiles(other) <= profiles(name), f"{name} needs {other}, which its profile does not start"
            if isinstance(needed, dict) and needed[other]["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"]


def test_the_settings_are_ones_that_the_product_takes() -> None:
    loaded = settings.load({**image_environment(), **SERVICES["proxy"]["environment"]})
    assert loaded.upstream == f"http://api:{SERVICES['api']['command'][1].rpartition(':')[2]}"
    assert int(SERVICES["proxy"]["stop_grace_period"].removesuffix("s")) > loaded.drain_seconds
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert loaded.admin_token is not None
    assert f"its token `{loaded.admin_token.get_secret_value()}`" in page
    ports = [port.split(":") for port in SERVICES["proxy"]["ports"]]
    assert {inside for _, _, inside in ports} == {
        loaded.listen.rpartition(":")[2],
        loaded.admin_listen.rpartition(":")[2],
    }


async def test_the_api_is_started_with_words_that_it_knows() -> None:
    module = SERVICES["api"]["entrypoint"][1:]
    done = await python(*module, "--help")
    assert done.code == 0
    assert SERVICES["api"]["command"][0] in done.out


def test_ports_are_published_on_loopback_only_and_the_api_not_at_all() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert "ports" not in SERVICES["api"]


@pytest.mark.parametrize("name", ["migrate", "api", "proxy", "prometheus", "grafana"])
def test_what_needs_no_privileges_has_none(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(("source", "target"), mounts())
def test_every_file_that_is_mounted_is_there(source: str, target: str) -> None:
    assert (ROOT / source).exists()


def test_the_same_base_image_is_named_everywhere() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    base = text.partition("ARG BASE=")[2].splitlines()[0]
    assert SERVICES["proxy"]["build"]["args"]["BASE"] == f"${{BASE:-{base}}}"


@pytest.mark.skipif(PROMTOOL is None and not os.environ.get("CI"), reason="promtool is not installed")
def test_prometheus_takes_its_configuration() -> None:
    assert PROMTOOL is not None
    path = ROOT / "deploy" / "compose" / "prometheus.yml"
    done = subprocess.run([PROMTOOL, "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_the_operator_port_and_reads_the_rules_that_are_mounted() -> None:
    (config,) = documents(ROOT / "deploy" / "compose" / "prometheus.yml")
    (job,) = config["scrape_configs"]
    (where,) = job["dns_sd_configs"]
    assert where["names"] == ["proxy"]
    assert f":{where['port']}" in image_environment()["IDEMPROXY_ADMIN_LISTEN"]
    (rules,) = config["rule_files"]
    assert str(Path(rules).parent) in dict(mounts()).values()


def test_grafana_looks_for_dashboards_where_they_are_mounted() -> None:
    (providers,) = documents(ROOT / "deploy" / "compose" / "grafana" / "dashboards.yml")
    assert {provider["options"]["path"] for provider in providers["providers"]} <= set(dict(mounts()).values())
    places = {target: ROOT / source for source, target in mounts()}
    found = [
        json.loads(path.read_text(encoding="utf-8"))
        for provider in providers["providers"]
        for path in places[provider["options"]["path"]].glob("*.json")
    ]
    assert [board["title"] for board in found]
    (sources,) = documents(ROOT / "deploy" / "compose" / "grafana" / "datasources.yml")
    (source,) = sources["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in SERVICES
    for board in found:  # each asks for a data source of a kind that there is, and takes the default one
        (wanted,) = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
        assert (wanted["query"], source["isDefault"]) == (source["type"], True)
