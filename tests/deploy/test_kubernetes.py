"""The manifests are what Kubernetes takes, and do what they say."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from idemproxy import settings
from tests.support.manifests import ROOT, Document, documents, env_file, image_environment
from tests.support.process import idemproxy

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("shared", "sidecar")
CONTRACT = FOLDER / "components" / "contract" / "contract.yaml"
RESOURCES = [
    path
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.name not in ("kustomization.yaml", "servicemonitor.yaml", "contract.yaml")  # these are no core resources
]
VERSIONS = ("1.34", kubernetes_validate.latest_version())

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def of_overlay(overlay: str) -> list[Document]:
    places = [FOLDER / "base", FOLDER / "overlays" / overlay]
    return [found for path in RESOURCES if path.parent in places for found in documents(path)]


def of_kind(overlay: str, kind: str) -> list[Document]:
    return [found for found in of_overlay(overlay) if found["kind"] == kind]


def pods(overlay: str) -> list[Document]:
    """Every pod template's spec."""
    return [found["spec"]["template"]["spec"] for kind in ("Deployment", "Job") for found in of_kind(overlay, kind)]


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def proxy_container(overlay: str) -> Document:
    return next(c for pod in pods(overlay) for c in containers(pod) if c["name"] == "idemproxy")


def loaded_settings(overlay: str, tmp_path: Path) -> settings.Settings:
    mounted = {
        "IDEMPROXY_DATABASE_URL_FILE": ("database", "url", "postgresql://idemproxy:secret@db/idemproxy"),
        "IDEMPROXY_ADMIN_TOKEN_FILE": ("operator", "token", "0123456789abcdef-token"),
    }
    proxy = proxy_container(overlay)
    names = {
        **image_environment(),
        **env_file(FOLDER / "base" / "settings.env"),
        **env_file(FOLDER / "overlays" / overlay / "settings.env"),
        **{variable["name"]: variable["value"] for variable in proxy["env"]},
    }
    places = {mount["name"]: mount["mountPath"] for mount in proxy["volumeMounts"]}
    for name, (volume, file, secret) in mounted.items():
        assert names[name] == f"{places[volume]}/{file}"
        (tmp_path / file).write_text(secret, encoding="utf-8")
        names[name] = str(tmp_path / file)
    return settings.load(names)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", RESOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_resource_has_the_shape_that_kubernetes_takes(path: Path, version: str) -> None:
    found = documents(path)
    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    deployment = next(iter(of_kind("shared", "Deployment")))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@functools.cache
def rendered(overlay: str) -> list[Document]:
    command = ["kubectl", "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_renders_each_overlay_into_valid_resources_of_one_namespace(overlay: str) -> None:
    for document in rendered(overlay):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    spaces = {found["metadata"].get("namespace") for found in rendered(overlay) if found["kind"] != "Namespace"}
    assert spaces == {"idemproxy"}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_changed_settings_are_rolled_out_and_every_image_is_named_in_one_place(overlay: str) -> None:
    made = next(found for found in rendered(overlay) if found["kind"] == "ConfigMap")
    assert re.fullmatch(r"idemproxy-\w{10}", made["metadata"]["name"])
    assert made["data"]["IDEMPROXY_UPSTREAM"]
    used = [
        c
        for found in rendered(overlay)
        if "template" in found.get("spec", {})
        for c in containers(found["spec"]["template"]["spec"])
    ]
    assert {c["image"] for c in used} == {"registry.example.com/idemproxy:0.1.0"}
    maps = {source["configMapRef"]["name"] for c in used for source in c.get("envFrom", [])}
    assert maps == {made["metadata"]["name"]}


def with_component(overlay: str, component: str, tmp_path: Path) -> list[Document]:
    """An overlay of a user's own, which adds a component to one of ours."""
    copy = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, copy)
    mine = copy / "overlays" / "mine"
    mine.mkdir()
    words = {"resources": [f"../{overlay}"], "components": [f"../../components/{component}"]}
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(words), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(mine)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_monitoring_component_can_be_added_to_an_overlay(overlay: str, tmp_path: Path) -> None:
    assert "ServiceMonitor" in {found["kind"] for found in with_component(overlay, "monitoring", tmp_path)}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_contract_component_gives_the_proxy_the_file_that_its_setting_names(overlay: str, tmp_path: Path) -> None:
    found = with_component(overlay, "contract", tmp_path)
    for document in found:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    maps = {document["metadata"]["name"]: document["data"] for document in found if document["kind"] == "ConfigMap"}
    (deployment,) = [document for document in found if document["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    proxy = next(container for container in containers(pod) if container["name"] == "idemproxy")
    named = Path(maps[proxy["envFrom"][0]["configMapRef"]["name"]]["IDEMPROXY_CONTRACT"])
    (mount,) = [mount for mount in proxy["volumeMounts"] if mount["mountPath"] == str(named.parent)]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert maps[volume["configMap"]["name"]][named.name] == CONTRACT.read_text(encoding="utf-8")


async def test_the_contract_of_the_component_is_one_that_the_proxy_takes() -> None:
    done = await idemproxy("contract", "lint", str(CONTRACT))
    assert (done.code, done.err) == (0, ""), done.out


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_settings_are_ones_that_the_product_takes(overlay: str, tmp_path: Path) -> None:
    chosen = loaded_settings(overlay, tmp_path)
    assert chosen.database_url is not None
    assert chosen.admin_token is not None


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_secret_that_a_pod_mounts_is_one_that_the_page_says_how_to_make(overlay: str) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    made = dict(re.findall(r"create secret generic (\S+) --from-literal=(\w+)=", page))
    volumes = [
        volume["secret"]["secretName"] for pod in pods(overlay) for volume in pod["volumes"] if "secret" in volume
    ]
    assert set(volumes) == made.keys() == {"idemproxy-database", "idemproxy-operator"}
    assert made == {"idemproxy-database": "url", "idemproxy-operator": "token"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_namespace_that_monitors_reaches_the_operator_port(overlay: str) -> None:
    ports = {port["name"]: port["containerPort"] for port in proxy_container(overlay)["ports"]}
    rules = [rule for policy in of_kind(overlay, "NetworkPolicy") for rule in policy["spec"]["ingress"]]
    opened = [rule for rule in rules if ports["operator"] in {port["port"] for port in rule["ports"]}]
    assert [rule["from"] for rule in opened] == [
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    ]
    assert all(len(rule["ports"]) == 1 for rule in opened)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_keeps_to_the_restricted_standard(overlay: str) -> None:
    namespace = of_kind(overlay, "Namespace")[0]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(overlay):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["automountServiceAccountToken"] is False
        general = pod["securityContext"]
        assert general["runAsNonRoot"] is True
        assert general["runAsUser"] == 65532
        assert general["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(volume) <= {"name", "secret", "emptyDir", "configMap"} for volume in pod["volumes"])
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "requests" in container["resources"]
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_service_puts_variables_of_our_prefix_into_a_pod(overlay: str) -> None:
    # A Service named idemproxy would give IDEMPROXY_SERVICE_HOST, and unknown settings are refused.
    assert all(pod["enableServiceLinks"] is False for pod in pods(overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_readiness_asks_the_store_and_liveness_never_does(overlay: str) -> None:
    proxy = proxy_container(overlay)
    assert proxy["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "operator"}
    assert proxy["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "operator"}
    assert proxy["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "operator"}


def test_a_shared_proxy_has_time_to_drain(tmp_path: Path) -> None:
    chosen = loaded_settings("shared", tmp_path)
    grace = of_kind("shared", "Deployment")[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > chosen.drain_delay_seconds + chosen.drain_seconds
    assert chosen.drain_delay_seconds >= 5  # shorter than what endpoints take to be forgotten


def test_a_sidecar_starts_first_and_stops_last(tmp_path: Path) -> None:
    pod = of_kind("sidecar", "Deployment")[0]["spec"]["template"]["spec"]
    (proxy,) = pod["initContainers"]
    (api,) = pod["containers"]
    assert proxy["restartPolicy"] == "Always"
    chosen = loaded_settings("sidecar", tmp_path)
    wait = api["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > wait + chosen.drain_seconds
    assert f"http://{api['args'][1]}" == chosen.upstream
    assert api["args"][1].startswith("127.0.0.1:")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_and_policies_mean_pods_and_ports_that_exist(overlay: str) -> None:
    deployment = of_kind(overlay, "Deployment")[0]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in proxy_container(overlay)["ports"]}
    for service in of_kind(overlay, "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    for kind in ("PodDisruptionBudget",):
        assert of_kind(overlay, kind)[0]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for policy in of_kind(overlay, "NetworkPolicy"):
        if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items():
            opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
            assert opened == set(ports.values())


def test_a_shared_proxys_api_takes_connections_from_the_proxy_alone(tmp_path: Path) -> None:
    deployment = of_kind("shared", "Deployment")[0]
    policy = next(p for p in of_kind("shared", "NetworkPolicy") if p["metadata"]["name"].startswith("api-"))
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    upstream = loaded_settings("shared", tmp_path).upstream
    assert upstream.endswith(f":{rule['ports'][0]['port']}")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_service_monitor_finds_the_operator_port(overlay: str) -> None:
    (monitor,) = documents(FOLDER / "components" / "monitoring" / "servicemonitor.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (service,) = [s for s in of_kind(overlay, "Service") if wanted.items() <= s["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
