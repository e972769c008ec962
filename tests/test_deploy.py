"""What lies in deploy/ is true: its commands parse, its paths and users agree, its probes exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from longtail.cli.app import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
USER = 10001


def read(name):
    return (DEPLOY / name).read_text()


def dockerfile_lists(word):
    """Return the lists behind a word of the Dockerfile, such as CMD."""
    whole = read("Dockerfile").replace("\\\n", " ")
    lines = [line for line in whole.splitlines() if re.match(rf"{word}\b.*\[", line)]
    return [json.loads(line[line.index("[") :]) for line in lines]


def in_kubernetes(kind):
    documents = yaml.safe_load_all(read("kubernetes.yaml"))
    return next(each for each in documents if each["kind"] == kind)


def container():
    (found,) = in_kubernetes("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return found


def unit():
    """Return the settings of the systemd unit; those that are there twice as the last."""
    lines = read("longtail.service").replace("\\\n", " ").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def served():
    """Return the arguments of `longtail serve`, by the file that has them."""
    (entry,) = dockerfile_lists("ENTRYPOINT")
    (command,) = dockerfile_lists("CMD")
    assert entry == ["longtail", "serve"]
    program, name, *arguments = shlex.split(unit()["ExecStart"])
    assert (Path(program).name, name) == ("longtail", "serve")
    (service,) = yaml.safe_load(read("compose.yaml"))["services"].values()
    return {
        "Dockerfile": command,
        "longtail.service": arguments,
        "compose.yaml": service["command"],
        "kubernetes.yaml": container()["args"],
    }


@pytest.mark.parametrize(
    "name", ["Dockerfile", "longtail.service", "compose.yaml", "kubernetes.yaml"]
)
def test_the_command_is_one_that_longtail_takes(name):
    command = get_command(app).commands["serve"]
    parsed = command.make_context("serve", served()[name]).params
    assert parsed["port"] == 8000
    assert parsed["folders"][0].name == "model"
    assert parsed["host"] == ("127.0.0.1" if name == "longtail.service" else "0.0.0.0")
    assert parsed["feedback"].suffix == ".db"


def test_what_the_image_is_made_of_exists():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", read("Dockerfile"), re.M)
    allowed = {line[1:] for line in read("Dockerfile.dockerignore").split() if line[0] == "!"}
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert name in allowed
    assert dockerfile_lists("HEALTHCHECK")[0][-1].count("http://127.0.0.1:8000/health/ready") == 1


def test_nobody_is_root_and_all_agree_who_it_is():
    text = read("Dockerfile")
    assert f"USER {USER}:{USER}" in text
    assert f"--uid {USER}" in text
    spec = in_kubernetes("StatefulSet")["spec"]["template"]["spec"]
    security = spec["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (USER, True)
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    (service,) = yaml.safe_load(read("compose.yaml"))["services"].values()
    assert service["read_only"] is True
    assert unit()["DynamicUser"] == "yes"


def test_the_probes_are_answered():
    from longtail.serve.app import make_app
    from longtail.serve.batching import Limits

    made = make_app({}, Limits(), tokens=[], local=False, feedback=None)
    paths = set(made._app.app.openapi()["paths"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["path"] in paths
    annotations = in_kubernetes("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in paths
    assert in_kubernetes("Service")["spec"]["ports"][0]["targetPort"] == "http"


def test_the_service_and_the_pods_find_each_other():
    pods = in_kubernetes("StatefulSet")["spec"]
    assert in_kubernetes("Service")["spec"]["selector"] == pods["selector"]["matchLabels"]
    assert pods["template"]["metadata"]["labels"] == pods["selector"]["matchLabels"]
    volumes = {each["name"] for each in pods["template"]["spec"]["volumes"]}
    claimed = {each["metadata"]["name"] for each in pods["volumeClaimTemplates"]}
    assert {each["name"] for each in container()["volumeMounts"]} == volumes | claimed


def test_the_guide_names_every_file():
    guide = (ROOT / "docs/guides/deploying.md").read_text()
    for file in DEPLOY.iterdir():
        assert file.name.removesuffix(".dockerignore") in guide
