"""Prints the packages of this Python's own environment, each with the digests that the index has of the files which fit."""

import importlib.metadata
import json
import site
import urllib.request

from pip._internal.commands.install import InstallCommand
from pip._vendor.packaging import tags, utils

index = InstallCommand("install", "").parser.get_default_values().index_url.rstrip("/")
fitting = set(tags.sys_tags())
packages = importlib.metadata.distributions(path=site.getsitepackages())
for name, version in sorted((utils.canonicalize_name(one.name), one.version) for one in packages):
    if name in ("pip", "setuptools"):
        continue
    asked = urllib.request.Request(f"{index}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked) as answer:
        files = {file["filename"]: file["hashes"]["sha256"] for file in json.load(answer)["files"]}
    wheels = [(utils.parse_wheel_filename(file), file) for file in files if file.endswith(".whl")]
    found = [file for (_, known, _, of), file in wheels if str(known) == version and fitting & of]
    found = found or [file for file in files if file.endswith(f"-{version}.tar.gz")]
    assert found, f"{name} {version}: the index has no file for this Python"
    print(f"{name}=={version}", *(f"--hash=sha256:{files[file]}" for file in found))
