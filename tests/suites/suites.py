"""The suites: tests of other projects, and small scripted ones for frameworks whose packages ship no tests."""

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
    # Options of pytest.
    options: list[str] = field(default_factory=list)
    # Folders of the environment's site-packages that the loader searches.
    libraries: list[str] = field(default_factory=list)
    # Stand-ins of the simulated GPU that only this suite uses.
    stand_ins: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    memory: str = "8GiB"
    uses_cuda: bool = True
    # Where the tests are; None means in the environment.
    root: Path | None = None


SUITES = [
    Suite("cuda-python", "cuda-python", ["cuda.tests"], quick=["cuda.tests"], libraries=["nvidia/cuda_nvrtc/lib"]),
    Suite("numba-cuda", "numba-cuda", ["numba.cuda.tests"], quick=["numba.cuda.tests.cudadrv"],
          plugins=["numba_fixture"]),
    Suite("onnxruntime", "onnxruntime", ["scripted/test_onnxruntime.py"], root=HERE, stand_ins=True, memory="1GiB"),
    Suite("jax", "jax", ["scripted/test_jax.py"], root=HERE, memory="1GiB"),
    # Paddle allocates nothing on the simulated GPU.
    Suite("paddle", "paddle", ["scripted/test_paddle.py"], root=HERE, uses_cuda=False),
]

# Tests that must give differences: they show that the comparison sees one.
SELF_TEST = Suite("selftest", "numba-cuda", ["scripted/test_selftest.py"], root=HERE, uses_cuda=False)
