"""The cells of scripts/layers with C clients: what runs, over which layer, and how a run is compared with the layer alone."""
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
LIMIT = GIB

# The variables of tests/support/layer/habits.c.
HABITS = {
    "well_behaved": {},
    "no_vmm": {"LAYER_VMM": "0"},
    "vmm_broken": {"LAYER_VMM": "broken"},
    "map_broken": {"LAYER_VMM": "broken-map"},
    "maps_once": {"LAYER_VMM": "once"},
    "vmm_uncounted": {"LAYER_VMM": "uncounted"},
    "in_one_piece": {"LAYER_CONTIGUOUS": "1"},
    "no_pools": {"LAYER_POOLS": "0"},
    "refuses_with_-1": {"LAYER_REFUSAL": "-1"},
    "frees_listed": {"LAYER_FREES": "listed"},
    "null_pointers": {"LAYER_NULLS": "1"},
    "asks_default": {"LAYER_DEFAULT": "1"},
    "forgetful": {"LAYER_FORGETFUL": "1"},
    "slow": {"LAYER_SLOW": "200us"},
    "arrays_uncounted": {"LAYER_ARRAYS": "uncounted"},
    "two_totals": {"LAYER_TOTAL": "device"},
    "nvml_of_book": {"LAYER_NVML": "book"},
    "watcher": {"LAYER_WATCHER": "100us"},
    "scheduler": {"LAYER_SCHEDULER": "300us"},
    "linear_managed": {"LAYER_LINEAR": "managed"},
    "linear_beyond": {"LAYER_LINEAR": "beyond"},
    "linear_oversold": {"LAYER_LINEAR": "oversold", "SIMGPU_MEMORY": "768MiB"},
    "refuses_with_1": {"LAYER_REFUSAL": "1"},
    "figure_moves": {"LAYER_FIGURE": "driver", "LAYER_VMM": "uncounted"},
    "exports_more": {"LAYER_EXPORTS": "more"},
    # What stands around a layer without habits: the library's own limit, a server of MPS, another process, a container.
    "limit_inherited": {"VRAMSHIM_MEMORY_LIMIT": "inherit"},
    "under_mps": {"SIMGPU_MPS": "4711000"},
    "device_full": {},
    # The same, and the first thread of the process that holds it has ended.
    "zombie_leader": {},
    "host_pids": {},
}
# A namespace of process ids, whose processes NVML names by those of the host.
CONTAINER = ["unshare", "-m", "-p", "--kill-child", "sh", "-c",
             'mount --bind /proc "$SIMGPU_HOSTPROC" && mount -t proc proc /proc && exec "$@"', "sh"]
MAY_MAKE_CONTAINERS = shutil.which("unshare") and not subprocess.run(
    [*CONTAINER[:4], "mount", "-t", "proc", "proc", "/proc"], stderr=subprocess.DEVNULL).returncode
# What another process holds of 2 GiB.
HELD_BY_OTHER = 1200 << 20
OTHER_HOLDS = {"device_full", "zombie_leader"}
# Habits that charge linear memory alone, and tell the same free memory whatever was taken.
LINEAR_ALONE = {"linear_managed", "linear_beyond"}
# Habits that answer linear memory with managed memory.
LINEAR_IS_MANAGED = LINEAR_ALONE | {"linear_oversold"}
# Habits of the layer's dlsym and NVML, which only the preloaded form hooks.
OF_PRELOADED = {"asks_default", "forgetful", "nvml_of_book", "exports_more"}
PLACES = ["behind", "in_front", "replacing"]
STRATEGIES = ["passthrough", "naive_best_fit", "auto_growth"]
# The scenes of tests/support/clients/quota.c, and `runtime`, which is a client of its own. `book`, `limit`: linear,
# pitched, managed, stream-ordered and mapped memory.
SCENES = {
    "book": ["book", "1", "150"],
    "limit": ["limit"],
    "forecast": ["forecast"],
    "mixed": ["mixed", "1", "1500"],
    "scattered": ["scattered"],
    "frees": ["frees"],
    "arrays": ["arrays"],
    "ipc": ["ipc"],
    "graphs": ["graphs"],
    "runtime": ["5", "150"],
}
SCENES_WITH_POOLS = {"frees", "graphs", "runtime"}
# The blocks of the scene `forecast`. Less than two of them may be lost to the rounding of a policy.
BLOCK = 48 << 20
TIME_LIMIT_S = 120


def compile_client(folder, name, source, *flags):
    program = folder / name
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O1", "-D_GNU_SOURCE", "-o", program, ROOT / "tests/support/clients" / source,
         "-I", ROOT, "-I", ROOT / "src/simgpu/include", "-I", ROOT / "tests/support/clients", *flags, "-ldl"],
        check=True)
    return program


def not_applicable(habit, place, strategy, scene):
    """Why a cell would show nothing; None if it shows something."""
    if habit == "no_pools" and scene in SCENES_WITH_POOLS:
        return "the scene is about memory pools, and the layer says that there are none"
    if place == "replacing" and habit in OF_PRELOADED:
        return "this form of the layer hooks neither dlsym nor NVML, so the cell would repeat well_behaved"
    if habit == "host_pids" and not MAY_MAKE_CONTAINERS:
        return "this user may make no namespaces"
    if habit == "exports_more" and scene == "runtime":
        return "the layer begins within the runtime that calls it, so it waits for itself without the library too"
    if scene == "scattered" and strategy == "naive_best_fit" and place != "in_front" and habit != "linear_beyond":
        return "naive_best_fit cuts one reservation, and its pieces that lie apart serve no larger request"
    return None


def every_cell(habits):
    return list(itertools.product(habits or HABITS, PLACES, STRATEGIES, SCENES))


class Bench:
    """Everything that is built once, and the results of the layer alone."""

    def __init__(self, folder, artifacts, simgpu):
        self.folder, self.library, self.simgpu = folder, artifacts / "libvramshim.so", simgpu
        self.program = artifacts / "vramshim"
        self.driver = simgpu / "libcuda.so.1"
        subprocess.run([ROOT / "tests/support/layer/build", folder, self.driver], check=True)
        self.dlopen = compile_client(folder, "quota-dlopen", "quota.c", "-DDLOPEN")
        self.linked = compile_client(folder, "quota-linked", "quota.c", f"-L{simgpu}", "-l:libcuda.so.1")
        self.member = compile_client(folder, "member", "member.c", "-DDLOPEN")
        self.runtime = compile_client(folder, "runtime", "runtime.c", "-pthread", f"-L{simgpu}", "-l:libcudart.so.13")
        self.known = {}
        self.host_processes = folder / "host"
        self.host_processes.mkdir()

    def state(self):
        """The file of the simulated GPU that the jobs of this thread have for themselves."""
        return self.folder / f"state-{threading.get_ident()}"

    def environment(self, habit, place, strategy):
        """The environment of a job; `strategy` is None for the layer alone."""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("VRAMSHIM_", "FLAGS_", "LAYER_", "SIMGPU_", "LD_", "CUDA_"))}
        environment |= {
            "LAYER_LIMIT": "1GiB", "SIMGPU_MEMORY": "2GiB", "SIMGPU_DEVICES": "2", "VRAMSHIM_JOURNAL_MAX": "0",
            "VRAMSHIM_LOG": "warn",
            "SIMGPU_STATE": str(self.state()),
        } | HABITS[habit]
        if habit == "host_pids":
            environment["SIMGPU_HOSTPROC"] = str(self.host_processes)
        preloads = [str(self.library)] if strategy else []
        folders = [str(self.simgpu)]
        layer = str(self.folder / "liblayer.so")
        if place == "replacing":
            environment["LAYER_DRIVER"] = str(self.driver)
            folders.insert(0, str(self.folder / "replacing"))
        elif place == "behind":
            preloads.append(layer)
        else:
            preloads.insert(0, layer)
        environment["LD_PRELOAD"] = ":".join(preloads)
        environment["LD_LIBRARY_PATH"] = ":".join(folders)
        if strategy:
            environment["VRAMSHIM_STRATEGY"] = strategy
        return environment

    def run(self, habit, place, strategy, scene):
        """A run; `strategy` is None for the layer alone."""
        environment = self.environment(habit, place, strategy)
        program = self.linked if place == "replacing" else self.dlopen
        if scene == "runtime":
            program = self.runtime
        try:
            done = self.start(habit, environment, program, *SCENES[scene])
        except subprocess.TimeoutExpired:
            return Run(-1, "", f"no end within {TIME_LIMIT_S} s")
        return Run(done.returncode, done.stdout, done.stderr)

    def start(self, habit, environment, *command):
        with self.device(habit, environment):
            return subprocess.run([*CONTAINER, *command] if habit == "host_pids" else command, env=environment, cwd=self.folder,
                                  capture_output=True, text=True, timeout=TIME_LIMIT_S)

    @contextlib.contextmanager
    def device(self, habit, environment):
        """The devices as a job finds them."""
        self.state().unlink(missing_ok=True)
        if habit not in OTHER_HOLDS:
            yield
            return
        bare = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
        with subprocess.Popen([self.member], env=bare | {"LD_LIBRARY_PATH": str(self.simgpu)}, cwd=self.folder, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            print(f"a {HELD_BY_OTHER}", file=other.stdin, flush=True)
            assert other.stdout.readline().startswith("0 ")
            if habit == "zombie_leader":
                print("z", file=other.stdin, flush=True)
                assert other.stdout.readline().strip() == "0"
            try:
                yield
            finally:
                other.stdin.close()

    def alone(self, habit, place, scene):
        # Without the library, nothing stands behind the layer or in front of it.
        return self.once(("alone", habit, place == "replacing", scene), lambda: self.run(habit, place, None, scene))

    def once(self, key, ask):
        if key not in self.known:
            self.known[key] = ask()
        return self.known[key]

    def ask_doctor(self, habit, place, strategy, *options):
        """The page of `vramshim doctor`, which gets the job's environment."""
        environment = self.environment(habit, place, strategy) | {"VRAMSHIM_LIBRARY": str(self.library)}
        done = self.start(habit, environment, self.program, "doctor", "--json", *options)
        return json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip()}

    def forecast(self, habit, place, strategy):
        """What doctor says that the strategy will do instead; None if it works as it is."""
        def ask():
            page = self.ask_doctor(habit, place, strategy)
            devices = page.get("forecast", [])
            return devices[0]["instead"] if devices else f"nothing: {page.get('error')}"
        return self.once(("forecast", habit, place, strategy), ask)


class Run:
    def __init__(self, code, output, errors):
        self.code, self.said = code, errors
        # The client's own line, which names its file, and not a line of the library.
        own = [line for line in errors.splitlines() if re.search(r"\.c:\d+: ", line)]
        self.problem = own[-1].rsplit("/", 1)[-1] if own else "no line of its own"
        lines = output.splitlines()
        objects = [json.loads(line) for line in lines if line.startswith("{")]
        self.checkpoints = [one for one in objects if "own" in one]
        self.told = [one["forecast"] for one in objects if "forecast" in one]
        words = [line.split() for line in lines if line.endswith(" served")]
        self.served = {line[0].rstrip(":"): int(line[1]) for line in words if len(line) == 3}
        # The last word of `mixed`; it tells whether the job ran out of memory.
        self.ran_out = any(line.startswith("out of memory: ") for line in lines)


def by_class(rows, bytes_of):
    """Bytes of device 0 by class."""
    held = {row["class"]: bytes_of(row) for row in rows["totals"] if row["device"] == 0}
    return {kind: held[kind] for kind in held if held[kind]}


def requested(row):
    return row["requested"]["current"]


def reserved(row):
    return row["reserved"]["current"]


def charged(checkpoint, habit):
    """What the layer should have on its books for device 0, by the library's ledger."""
    kinds = {"linear"} if habit in LINEAR_ALONE else {"linear", "pitched", "managed", "vmm", "array", "async"}
    kinds -= {"vmm_uncounted": {"vmm"}, "figure_moves": {"vmm"}, "arrays_uncounted": {"array"}}.get(habit, set())
    account = by_class(checkpoint["account"], lambda row: (requested if row["class"] == "async" else reserved)(row))
    return sum(account.get(kind, 0) for kind in kinds)


def held_of_device(checkpoint, habit, maps):
    """Two books of what the process holds, by class: the ledger's reserved bytes, and the simulated GPU's table. What a policy
    mapped (`maps`), and managed memory that a layer took in place of linear memory, counts as linear memory."""
    ledger, table = by_class(checkpoint["account"], reserved), by_class(checkpoint["truth"], lambda row: row["reserved"])
    for kind in ["vmm"] * maps + ["managed"] * (habit in LINEAR_IS_MANAGED):
        table["linear"] = table.get("linear", 0) + table.pop(kind, 0) - ledger.get(kind, 0)
        table[kind] = ledger.get(kind, 0)
    if maps:
        # Addresses cost nothing. Those that a policy reserves are in no book.
        table["address_range"] = ledger.get("address_range", 0)
    return ledger, {kind: held for kind, held in table.items() if held}


def done_instead(run):
    """What the strategy did instead, by its own words and by what the layer saw."""
    if "passes every request through" in run.said:
        return "passthrough"
    if "grows in chunks" in run.said:
        return "chunks"
    # No line says that memory is mapped once. The layer counts how often it refused to map a handle again.
    return "map_once" if any(one["layer"].get("second_mappings") for one in run.checkpoints) else None


class Comparison:
    """What was compared in a cell, and what was not as it should be."""

    def __init__(self):
        self.compared, self.faults = [], []

    def that(self, what, holds, otherwise):
        if what not in self.compared:
            self.compared.append(what)
        if not holds:
            self.faults.append(otherwise)


def compare_strategy(bench, cell, did, maps_again, result):
    """Without a wish to map a handle again (`maps_again`), a strategy that maps once does what others do."""
    if cell[2] != "passthrough":
        foretold = bench.forecast(*cell[:3])
        result.that("doctor's forecast", foretold == did or (foretold, did, maps_again) == ("map_once", None, False),
                    f"doctor foretold {foretold}, the strategy did {did}")


def compare_forecast(bench, cell, with_library, result):
    """Compares what doctor foretold with what happened."""
    habit, place, strategy, scene = cell
    # Scenes without linear memory begin no pool, so the strategy decides nothing there.
    # A layer in front that takes managed memory lets no request for linear memory through.
    decides = scene in ("book", "limit", "mixed", "scattered", "ipc") and not (place == "in_front" and habit in LINEAR_IS_MANAGED)
    if decides:
        compare_strategy(bench, cell, done_instead(with_library), scene == "scattered", result)


def compare_failures(alone, with_library, result):
    """Both runs failed: they must have failed alike, or the library cured what failed first. Returns whether they did."""
    if len(with_library.checkpoints) > len(alone.checkpoints):
        result.that("checkpoints before the failure", True, "")
        return False
    result.that("the client's own line", with_library.problem == alone.problem,
                f"fails with {with_library.problem!r}, alone {alone.problem!r}")
    result.that("checkpoints before the failure", len(with_library.checkpoints) == len(alone.checkpoints),
                f"{len(with_library.checkpoints)} checkpoints, alone {len(alone.checkpoints)}")
    return True


def compare_served(alone, with_library, result):
    result.that("out of memory", alone.ran_out or not with_library.ran_out, "runs out of memory, alone it does not")
    if alone.code != 0:
        return
    for kind, count in with_library.served.items():
        had = alone.served.get(kind, 0)
        result.that("blocks served", count <= had, f"{count} blocks of {kind} served, alone {had}")
    for kind, count in alone.served.items():
        had = with_library.served.get(kind, 0)
        # Rounding by a policy may cost one block.
        result.that("blocks served", had >= count - 1, f"{had} blocks of {kind} served, alone {count}")


def compare_told(cell, alone, with_library, result):
    """What cuMemGetInfo called free must be there. Over some layers alone it is not; then passthrough tells the same."""
    habit, place, strategy, _scene = cell
    for number, (had, got) in enumerate(zip(alone.told, with_library.told)):
        if strategy == "passthrough" or place == "in_front" and habit in LINEAR_ALONE:
            result.that("free memory as alone", got["told"] == had["told"],
                        f"round {number}: told {got['told']} bytes free, alone {had['told']}")
        elif got["refused"]:
            result.that("free memory can be had", got["told"] < got["got"] + 2 * BLOCK and got["then_told"] < 2 * BLOCK,
                        f"round {number}: told {got['told']} bytes free, got {got['got']}, then told {got['then_told']}")


def compare_in_front(alone, with_library, result):
    """A layer in front sees the job's own requests, and no others."""
    for number, (had, got) in enumerate(zip(alone.checkpoints, with_library.checkpoints)):
        had, got = had["layer"]["used"][0], got["layer"]["used"][0]
        result.that("the layer's book as alone", got == had,
                    f"checkpoint {number}: {got} bytes on the book of the layer in front, alone {had}")


def compare_books(habit, place, strategy, scene, with_library, result):
    # A strategy that does something else has given all back that it tried.
    maps = strategy == "auto_growth" and done_instead(with_library) in (None, "map_once")
    for number, checkpoint in enumerate(with_library.checkpoints):
        ledger, table = held_of_device(checkpoint, habit, maps)
        result.that("the simulated GPU's table", ledger == table,
                    f"checkpoint {number}: the ledger has {ledger}, the simulated GPU {table}")
        used = checkpoint["layer"]["used"][0]
        if habit != "linear_beyond":
            limit = checkpoint["layer"]["limit"]
            result.that("the layer's limit", used <= limit,
                        f"checkpoint {number}: {used} bytes on the layer's book, the limit is {limit}")
        expected = charged(checkpoint, habit)
        if place != "in_front":
            # Such a layer does not charge memory of the job's own pools, which the ledger does not tell apart.
            own_pools = 0
            if (habit, scene) == ("frees_listed", "runtime"):
                own_pools = by_class(checkpoint["account"], requested).get("async", 0)
            result.that("the books", expected - own_pools <= used <= expected,
                        f"checkpoint {number}: {used} bytes on the layer's book, {expected} in the ledger, "
                        f"up to {own_pools} of them not charged")
        taken = by_class(checkpoint["account"], reserved).get("linear", 0)
        result.that("linear memory taken", place == "in_front" and habit in LINEAR_ALONE or taken <= used,
                    f"checkpoint {number}: {taken} bytes of linear memory taken, {used} on the layer's book")


def compare_own(habit, place, with_library, result):
    """The ledger has what the client counted. A layer in front may ask for managed memory in place of linear memory."""
    for number, one in enumerate(with_library.checkpoints):
        own, ledger = by_class({"totals": one["own"]}, lambda row: row["requested"]), by_class(one["account"], requested)
        result.that("the client's own count", own == ledger or place == "in_front" and habit in LINEAR_IS_MANAGED,
                    f"checkpoint {number}: the client counts {own}, the ledger {ledger}")


def compare_end(place, scene, with_library, result):
    # These end with memory that they never free.
    if scene in ("mixed", "runtime") or not with_library.checkpoints:
        return
    last = with_library.checkpoints[-1]
    live = [row for row in last["account"]["totals"] if row["requested"]["current"]]
    result.that("nothing at the end", not live, f"at the end the ledger has {live}")
    if place == "in_front":
        result.that("nothing at the end", not last["layer"]["used"][0],
                    f"at the end the layer has {last['layer']['used'][0]} bytes")


def had_effect(habit, scene, run):
    """Whether the habits that show themselves only in time did show themselves."""
    figure = {"watcher": "rounds", "scheduler": "waits"}.get(habit)
    # What a graph allocates or fills is not held back.
    return not figure or (figure, scene) == ("waits", "graphs") or any(one["layer"].get(figure) for one in run.checkpoints)


def compare_verdict(habit, with_library, result):
    """Who holds what the driver behind the layer lacks. Of many failures only the first ones tell all."""
    refused = with_library.said.find("Refused by: the driver itself")
    if habit in OTHER_HOLDS and refused >= 0:
        told = with_library.said[refused:].partition("\nW")[0]
        result.that("the holder's name", "(member)" in told and "Verdict: another process" in told, f"the verdict says {told!r}")


def compare_ends(bench, cell, alone, with_library, result):
    habit, place, _strategy, scene = cell
    result.that("the habit's effect", had_effect(habit, scene, with_library), "the layer's habit had no effect")
    compare_forecast(bench, cell, with_library, result)
    compare_served(alone, with_library, result)
    compare_told(cell, alone, with_library, result)
    compare_verdict(habit, with_library, result)
    compare_own(habit, place, with_library, result)
    compare_end(place, scene, with_library, result)


def judge(bench, *cell, not_applicable=not_applicable, failures=compare_failures, ends=compare_ends):
    """A word for the table, what was compared, the faults as sentences, and why the cell is not applicable."""
    habit, place, strategy, scene = cell
    result = Comparison()
    if why := not_applicable(*cell):
        return "n/a", [], [], why
    alone, with_library = bench.alone(habit, place, scene), bench.run(*cell)
    # Otherwise the scene itself is wrong, and would show nothing over the other habits either.
    result.that("the scene over a layer without habits", habit != "well_behaved" or alone.code == 0,
                f"fails over the layer alone: {alone.problem}")
    result.that("exit code", with_library.code in (0, alone.code),
                f"ends with {with_library.code}, alone with {alone.code}: {with_library.problem}")
    word = "cured" if alone.code else "ok"
    if with_library.code == 0:
        ends(bench, cell, alone, with_library, result)
        if place == "in_front" and alone.code == 0:
            compare_in_front(alone, with_library, result)
        compare_books(habit, place, strategy, scene, with_library, result)
    elif alone.code != 0:
        word = "as alone (fails)" if failures(alone, with_library, result) else "fails later"
    return "FAILS" if result.faults else word, result.compared, result.faults, None
