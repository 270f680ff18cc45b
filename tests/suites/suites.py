"""The suites: tests of other projects."""

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass
class Suite:
    name: str
    # The environment below CACHE/suites; requirements/ENVIRONMENT.txt says what it has.
    environment: str
    # What pytest gets: modules of the environment, or paths below the folder `root`.
    tests: list[str]
    # What pytest gets in the quick form; empty: the quick form leaves the suite out.
    quick: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    # Folders of the environment's site-packages that the loader searches.
    libraries: list[str] = field(default_factory=list)
    uses_cuda: bool = True
    # Where the tests are; None means in the environment.
    root: Path | None = None


SUITES = [
    Suite("cuda-python", "cuda-python", ["cuda.tests"], quick=["cuda.tests"], libraries=["nvidia/cuda_nvrtc/lib"]),
    Suite("numba-cuda", "numba-cuda", ["numba.cuda.tests"], quick=["numba.cuda.tests.cudadrv"], plugins=["numba_fixture"]),
]

# Tests that must give differences: they show that the comparison sees one.
SELF_TEST = Suite("selftest", "numba-cuda", ["test_selftest.py"], root=HERE, uses_cuda=False)
