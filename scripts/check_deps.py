"""Checks dependencies against deny.toml if cargo-deny is not installed. scripts/check-deps calls this program.

The program reads what crates declare, from "cargo metadata" for every target in deny.toml. It reads no licence text.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict

# The entries of deny.toml that this program understands. It refuses all others, so that no rule is skipped in silence.
UNDERSTOOD = {
    "graph": {"targets", "all-features"},
    "licenses": {"version", "allow", "confidence-threshold"},
    "bans": {"multiple-versions", "wildcards", "deny"},
    "sources": {"unknown-registry", "unknown-git", "allow-registry", "allow-git"},
}


def permitted(expression, allowed):
    """Whether the allowed licences satisfy an SPDX expression. "/" is an old way to write OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        if not tokens:
            raise ValueError(expression)
        token = tokens.pop(0)
        if token == "(":
            value = either()
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(expression)
            return value
        if token in (")", "AND", "OR", "WITH"):
            raise ValueError(expression)
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            if not tokens:
                raise ValueError(expression)
            token += " WITH " + tokens.pop(0)
        return token in allowed

    value = either()
    if tokens:
        raise ValueError(expression)
    return value


def check(rules, packages):
    """Returns (errors, warnings) for packages as "cargo metadata" writes them."""
    errors, warnings = [], []
    for section, entries in rules.items():
        for entry in entries if section in UNDERSTOOD else [None]:
            if entry not in UNDERSTOOD.get(section, ()):
                what = f"[{section}] {entry or ''}".rstrip()
                errors.append(f"deny.toml: {what}: scripts/check_deps.py does not know it; use cargo-deny")
    if errors:
        return errors, warnings
    level = {"deny": errors, "warn": warnings, "allow": []}
    bans, sources = rules.get("bans", {}), rules.get("sources", {})
    allowed = set(rules.get("licenses", {}).get("allow", []))
    banned = {ban["crate"]: ban.get("reason", "deny.toml bans it") for ban in bans.get("deny", [])}
    versions = defaultdict(list)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        versions[package["name"]].append(package["version"])
        if package["name"] in banned:
            errors.append(f"{name}: banned: {banned[package['name']]}")
        try:
            if not package["license"]:
                errors.append(f"{name}: names no licence")
            elif not permitted(package["license"], allowed):
                errors.append(f"{name}: licence {package['license']} is not allowed")
        except ValueError:
            errors.append(f"{name}: licence {package['license']} cannot be read")
        kind, _, address = (package["source"] or "path+").partition("+")
        if kind == "git":
            if re.sub(r"[?#].*", "", address) not in sources.get("allow-git", []):
                level[sources.get("unknown-git", "warn")].append(f"{name}: unknown Git source {address}")
        elif kind != "path" and address not in sources.get("allow-registry", []):
            level[sources.get("unknown-registry", "warn")].append(f"{name}: unknown registry {address}")
        for dependency in package["dependencies"]:
            if dependency["req"] == "*" and not dependency.get("path"):
                level[bans.get("wildcards", "allow")].append(f"{name}: takes any version of {dependency['name']}")
    for name, found in sorted(versions.items()):
        if len(found) > 1:
            several = f"{name}: {len(found)} versions: {', '.join(sorted(found))}"
            level[bans.get("multiple-versions", "warn")].append(several)
    return errors, warnings


def resolved(rules):
    """The packages that a build for one of the targets uses, tests and build scripts included."""
    graph, packages = rules.get("graph", {}), {}
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    if graph.get("all-features"):
        command.append("--all-features")
    for target in graph.get("targets", [None]):
        filtered = command + (["--filter-platform", target] if target else [])
        metadata = json.loads(subprocess.run(filtered, check=True, stdout=subprocess.PIPE).stdout)
        used = {node["id"] for node in metadata["resolve"]["nodes"]}
        packages |= {package["id"]: package for package in metadata["packages"] if package["id"] in used}
    return list(packages.values())


def self_test():
    registry = "registry+https://example.org/index"
    rules = {
        "licenses": {"allow": ["MIT", "Apache-2.0 WITH LLVM-exception"]},
        "bans": {
            "multiple-versions": "warn",
            "wildcards": "deny",
            "deny": [{"crate": "banned", "reason": "too large"}],
        },
        "sources": {"unknown-registry": "deny", "unknown-git": "deny", "allow-registry": ["https://example.org/index"]},
    }

    def package(**changes):
        return {"name": "a", "version": "1.0.0", "license": "MIT", "source": registry, "dependencies": []} | changes

    any_version = {"name": "b", "req": "*"}
    cases = [  # packages, errors, warnings
        ([package()], [], []),
        ([package(license="GPL-3.0 OR MIT")], [], []),
        ([package(license="GPL-3.0/MIT")], [], []),
        ([package(license="Apache-2.0 WITH LLVM-exception")], [], []),
        ([package(source=None, dependencies=[any_version | {"path": "b"}])], [], []),
        ([package(license="GPL-3.0")], ["a 1.0.0: licence GPL-3.0 is not allowed"], []),
        ([package(license="Apache-2.0")], ["a 1.0.0: licence Apache-2.0 is not allowed"], []),
        ([package(license="MIT AND GPL-3.0")], ["a 1.0.0: licence MIT AND GPL-3.0 is not allowed"], []),
        ([package(license="(MIT OR ISC) AND ISC")], ["a 1.0.0: licence (MIT OR ISC) AND ISC is not allowed"], []),
        ([package(license="(MIT")], ["a 1.0.0: licence (MIT cannot be read"], []),
        ([package(license="MIT OR")], ["a 1.0.0: licence MIT OR cannot be read"], []),
        ([package(license="MIT MIT")], ["a 1.0.0: licence MIT MIT cannot be read"], []),
        ([package(license=None)], ["a 1.0.0: names no licence"], []),
        ([package(source="git+https://example.org/a?rev=1#2")],
         ["a 1.0.0: unknown Git source https://example.org/a?rev=1#2"], []),
        ([package(source="registry+https://example.net")], ["a 1.0.0: unknown registry https://example.net"], []),
        ([package(source="sparse+https://example.net/")], ["a 1.0.0: unknown registry https://example.net/"], []),
        ([package(name="banned")], ["banned 1.0.0: banned: too large"], []),
        ([package(dependencies=[any_version])], ["a 1.0.0: takes any version of b"], []),
        ([package(), package(version="2.0.0")], [], ["a: 2 versions: 1.0.0, 2.0.0"]),
    ]
    wrong = 0
    for packages, errors, warnings in cases:
        found = check(rules, packages)
        if found != (errors, warnings):
            wrong += 1
            print(f"self-test: expected {(errors, warnings)}\n           found    {found}", file=sys.stderr)
    if not check({"licenses": {"exceptions": []}}, [])[0]:
        wrong += 1
        print("self-test: an unknown entry of deny.toml was not refused", file=sys.stderr)
    print(f"self-test: {len(cases) + 1} cases, {wrong} wrong")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    with open(sys.argv[1], "rb") as file:
        rules = tomllib.load(file)
    try:
        packages = resolved(rules)
    except subprocess.CalledProcessError as error:
        print(f"check-deps: {' '.join(error.cmd)} failed", file=sys.stderr)
        return 1
    errors, warnings = check(rules, packages)
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(packages)} crates, {len(errors)} errors, {len(warnings)} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
