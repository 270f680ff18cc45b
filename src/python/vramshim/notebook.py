"""The report inside a notebook: `vramshim.report()`, and `%load_ext vramshim` for `%vramshim why`."""

import html
import os
import shutil
import subprocess

from . import control
from .installed import program_path


def run(*arguments):
    """Runs the program, without the library in it. `FileNotFoundError` if neither `PATH` nor this package has one."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [shutil.which("vramshim") or program_path(), *arguments]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600)


class Page:
    """A report. A notebook shows it inline, and `text` is the whole HTML page."""

    def __init__(self, text):
        self.text = text

    def _repr_html_(self):
        return f'<iframe srcdoc="{html.escape(self.text)}" style="width: 100%; height: 900px; border: 0"></iframe>'


def report(*paths):
    """The report of these journals or folders. Without one, of this process so far if it runs under the library, or else
    of the newest job here. Raises `RuntimeError` with the program's message if there is none."""
    own = control.journal_path() if not paths and control.is_loaded() else None
    done = run("report", "-o", "-", *map(os.fspath, paths or ([own] if own else [])))
    if not done.stdout:
        raise RuntimeError(done.stderr.strip())
    return Page(done.stdout)


def magic(line):
    """`%vramshim why`, `%vramshim inspect --top stack`: runs the program. `%vramshim report` shows the page here."""
    words = line.split()
    if words[:1] == ["report"]:
        return report(*words[1:])
    done = run(*words)
    print(done.stdout + done.stderr, end="")
