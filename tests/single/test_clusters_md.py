"""docs/clusters.md: what a reader copies is YAML, shell and options that are."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt

TEXT = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
FENCED = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.S)
INDENTED = re.findall(r"^    \S.*", TEXT.replace("\\\n", " "), re.M)
ENGINES = {"hfdt": hfdt, "nfdt": nfdt}


def commands():
    shell = "\n".join([*INDENTED, *(text for kind, text in FENCED if kind == "bash")])
    for line in shell.splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        start = next((n for n, word in enumerate(words) if word in ENGINES), None)
        if start is not None and len(words) > start + 1 and "docker" not in words:
            yield words[start:]
    yield from ([*words] for words in re.findall(r"command: (\[.*?\])", TEXT) for words in [yaml.safe_load(words)])


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_in_it_has_the_options_that_it_is_given(words):
    engine, verb, *rest = words
    if verb == "doctor:":
        return  # what it printed
    command = ENGINES[engine].get_command(click.Context(ENGINES[engine]), verb)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in rest if re.fullmatch(r"--?[a-z][a-z-]*|-H", word)} <= known


def test_there_are_commands_to_look_at():
    assert {words[1] for words in commands()} >= {"run", "serve", "doctor", "certs"}


def test_its_manifest_is_an_mpi_job():
    (manifest,) = [yaml.safe_load(text) for kind, text in FENCED if kind == "yaml"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    for part in ("Launcher", "Worker"):
        pod = manifest["spec"]["mpiReplicaSpecs"][part]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/dev/shm"}


def test_its_batch_script_is_shell():
    (script,) = [text for kind, text in FENCED if kind == "bash"]
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
