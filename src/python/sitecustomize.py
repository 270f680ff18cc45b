"""Python imports this file when it starts, because `vramshim run` puts its folder on PYTHONPATH.

The file hides another `sitecustomize` that Python would import, so it imports that one too. It must never stop the job.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _import_hidden(here):
    """Imports the `sitecustomize` that Python would have found without this folder."""
    others = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start():
    mode = os.environ.get("VRAMSHIM_TORCH", "")
    if mode in ("", "off"):
        return
    try:
        from vramshim import startup

        startup.when_torch_is_imported(mode)
    except Exception as problem:  # the job is worth more than the record of it
        print(f"vramshim: --torch {mode} does not act: {problem!r}", file=sys.stderr, flush=True)


_start()
_import_hidden(os.path.dirname(os.path.realpath(__file__)))
