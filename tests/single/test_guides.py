"""The README and the guides: their examples are valid YAML, shell, and existing options."""

import ast
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from fdt import PACKAGES
from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "guides").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
FENCED = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.S)
ENGINES = {"hfdt": hfdt, "nfdt": nfdt}


def commands():
    shell = "\n".join(text for kind, text in FENCED if kind in ("bash", "shell")).replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in TEXT.splitlines() if line.startswith("$ ")]
    for line in [*shell, *typed]:
        words = shlex.split(line, comments=True)
        start = next((n for n, word in enumerate(words) if word in ENGINES), None)
        if start is not None and len(words) > start + 1 and "docker" not in words:
            yield words[start:]
    yield from ([*words] for words in re.findall(r"command: (\[.*?\])", TEXT) for words in [yaml.safe_load(words)])


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_in_it_has_the_options_that_it_is_given(words):
    engine, verb, *rest = words
    command = ENGINES[engine].get_command(click.Context(ENGINES[engine]), verb)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    ours, of_script = split(rest, behind_script=verb in ("simulate", "control"))
    assert options(ours) <= known
    assert options(of_script) & known <= {"-np", "--sync", "--async"}  # others would be the script's own


def split(words, *, behind_script):
    """Our words and the script's: these stand behind the script, or, `behind_script`, behind `--`."""
    end = words.index("--") if "--" in words else len(words)
    script = next((n for n, word in enumerate(words[:end]) if word.endswith((".py", ".ipynb"))), end)
    return (words[:end], words[end:]) if behind_script else (words[:script], words[script:])


def options(words):
    return {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*|-H", word)}


def test_there_are_commands_to_look_at():
    assert {words[1] for words in commands()} >= {"run", "serve", "doctor", "certs"}


def test_its_manifest_is_an_mpi_job():
    (manifest,) = [yaml.safe_load(text) for kind, text in FENCED if kind == "yaml" and "apiVersion" in text]
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    for part in ("Launcher", "Worker"):
        pod = manifest["spec"]["mpiReplicaSpecs"][part]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/dev/shm"}


def test_its_batch_scripts_are_shell():
    scripts = [text for kind, text in FENCED if kind == "bash"]
    assert len(scripts) == 2
    for script in scripts:
        assert script.startswith("#!/bin/bash\n#SBATCH ")
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
def test_every_algorithm_has_a_page(engine):
    """docs/algorithm_pages.py makes it from docs/algorithms.yaml; mkdocs.yml lists it."""
    uses = yaml.safe_load((ROOT / "docs" / "algorithms.yaml").read_text())
    listed = (ROOT / "mkdocs.yml").read_text()
    for name in importlib.import_module(f"{engine}.algorithms").names():
        assert len(uses[name]) == 2 and f"- algorithms/{name}.md\n" in listed


def test_docstrings_and_messages_name_files_that_exist():
    """Names with a folder, such as nfdt/tree.py, wherever they stand in the code and the .proto files."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    sources = [p for p in tracked if p.startswith((*PACKAGES, "proto/")) and re.search(r"(?<!_pb2)\.(py|proto)$", p)]
    assert len(sources) > 300
    named = re.compile(rf"(?<![\w/.*-])(?:{'|'.join(PACKAGES)}|tests|docs)/[\w/]+\.(?:py|md|toml|yaml)\b")
    found = {(path, name) for path in sources for name in named.findall((ROOT / path).read_text())}
    assert not {pair for pair in found if pair[1] not in tracked}


def test_the_architecture_names_files_and_classes_that_exist():
    code = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "architecture.md").read_text())
    files = {path for text in code for path in re.findall(r"^(?:\w+/)+\w+\.py$", text)}
    assert len(files) > 50
    assert not [path for path in files if not (ROOT / path).is_file()]
    source = "\n".join(path.read_text() for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
    classes = {name for text in code for name in re.findall(r"^[A-Z][a-z]+(?:[A-Z][a-z]+)+$", text)}
    assert not [name for name in classes if not re.search(rf"\b{name}\b", source)]


def described():
    """Yield (engine, algorithm, parameters with defaults) of each row of docs/algorithms.md's tables of algorithms."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    of_hfdt, of_nfdt = re.split(r"^## NFDT$", text, flags=re.M)
    for engine, part in (("hfdt", of_hfdt), ("nfdt", of_nfdt)):
        tables = "\n".join(block for block in part.split("\n\n") if block.startswith("| algorithm |"))
        for name, given, parameters in re.findall(r"^\| `(\w+)(?:\((.*?)\))?`[^|]*\|(?: `(.*?)` \|$)?", tables, re.M):
            call = ast.parse(f"{name}({given or parameters})", mode="eval").body
            yield engine, name, {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def test_the_tables_of_algorithms_name_all_of_them_with_their_defaults():
    rows = list(described())
    for engine in ENGINES:
        registry = importlib.import_module(f"{engine}.algorithms")
        mine = [(name, parameters) for owner, name, parameters in rows if owner == engine]
        assert {name for name, _ in mine} == {*registry.names()}
        for name, parameters in mine:
            defaults = {key: parameter.default for key, parameter in registry.parameters(name).items()}
            assert parameters.items() <= defaults.items(), name
    assert sum(bool(parameters) for *_, parameters in rows) > 10
