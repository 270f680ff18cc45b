"""Records PyTorch's tensors with Python stacks beside the journal. PyTorch keeps its allocator.

PyTorch's allocator keeps its last events in memory. Twice a second, or when half of them are new, a thread writes the
new ones to a file that has the journal's name with another ending. So a killed process loses at most the last second.
docs/journal-format.md describes the file.

PyTorch's list is never cleared: threads of autograd run without the interpreter's lock, and go on allocating while a
drain reads the list. What a drain has read already, the next one finds again and leaves out.
"""

import atexit
import gc
import importlib
import os
import threading
import time

import torch

from . import library as _library

VERSION = 1
# Stands for a value that PyTorch does not tell.
NOT_KNOWN = "-"
# A drain reads PyTorch's whole list and all live tensors. So a job for which that takes long is drained less often, but
# at least once a second.
INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.5, 1.0
LARGEST_SHARE_OF_TIME = 0.05
# How often the number of new events is looked at.
LOOK_SECONDS = 0.05
# An error of out of memory is written at once, because the job may end. A search for the largest batch raises many, so
# those that follow within this time wait for the thread.
BETWEEN_ERRORS_SECONDS = 1.0
# Events that PyTorch keeps; more after events were lost.
FIRST_ENTRIES, MOST_ENTRIES = 1 << 14, 1 << 20
MOST_BYTES = 4 << 30
# As many new objects as no job makes until Python looks for garbage.
NO_COLLECTION = 1 << 26

_recorder = None
# Why nothing is recorded. None if a line said so, or if tensors are recorded.
_why_nothing = "PyTorch has not used CUDA"
# The job has called PyTorch's functions for the history, which has one reader only.
_job_reads = False


def start():
    """Records from the moment on at which the job first uses CUDA."""
    global _why_nothing
    library = _library.preloaded()
    if library is None:
        raise RuntimeError("libvramshim.so is not preloaded: start the job with vramshim run")
    if not hasattr(torch._C, "_cuda_init"):
        return
    if _record_history is None:
        _why_nothing = None
        raise RuntimeError(f"PyTorch {torch.__version__} keeps no such memory history; 2.1 and newer do")
    _give_memory_back_with_the_cache(library)
    for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, _leaving_the_history(getattr(torch._C, name)))
    if torch.cuda.is_initialized():
        _begin(library)
        return
    original = torch._C._cuda_init

    def initialise():
        original()
        _begin(library)

    # Recording would initialise CUDA, which a process that forks must not have done.
    torch._C._cuda_init = initialise


def why_nothing():
    """Why no tensor was recorded, unless tensors were recorded or a line has said why."""
    return _why_nothing


def _give_memory_back_with_the_cache(library):
    """After `empty_cache`, a policy gives back what it keeps of the cache. The driver would have it back by then."""
    original = torch._C._cuda_emptyCache

    def empty_cache(*arguments):
        original(*arguments)
        library.vramshim_torch_empty_cache()

    torch._C._cuda_emptyCache = empty_cache


def drain():
    """Writes what PyTorch has recorded until now. Tests and jobs that end by os._exit may call it."""
    if _recorder is not None:
        _recorder.drain()


def _begin(library):
    global _recorder, _why_nothing
    if _recorder is not None or _job_reads:
        return
    try:
        _recorder = _Recorder(library)
        _why_nothing = "PyTorch has made no tensor on a GPU"
    except Exception as problem:  # such as RuntimeError, if the job uses another allocator
        _why_nothing = None
        _library.say(f"PyTorch's tensors are not recorded: {problem}")


def _leaving_the_history(original):
    """A function of PyTorch's for the job. Before its first call ends, our recording ends."""

    def function(*arguments, **named):
        global _job_reads, _why_nothing
        if not _job_reads:
            _job_reads, _why_nothing = True, None
            if _recorder is not None:
                _recorder.end()
            _library.say("the job records PyTorch's memory history itself; tensors are not recorded from now on")
        return original(*arguments, **named)

    return function


def _in_forked_child():
    # The thread is gone, and the file is the parent's.
    global _recorder
    if _recorder is not None:
        _recorder.forget()
        _recorder = None


os.register_at_fork(after_in_child=_in_forked_child)


def _keep_history(entries):
    """Lets PyTorch keep its last events, with the Python stack of each allocation, in a new list."""
    arguments = ("all", "alloc", "python", entries, True, False, False, ["free_requested", "snapshot"])
    # Older versions lack the last arguments.
    for count in (8, 7, 5):
        try:
            return _record_history(*arguments[:count])
        except TypeError:
            if count == 5:
                raise


_record_history = getattr(torch._C, "_cuda_record_memory_history", None)


def _escaped(text):
    if "\\" in text or "\t" in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    return text


def _identity(event):
    # An event of out of memory has no address.
    return event["time_us"], event["action"], event.get("addr"), event["size"]


class _Recorder:
    def __init__(self, library):
        self.library = library
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.file = None
        self.written = 0
        self.has_settings = False
        self.stacks = {}
        self.live = {}
        self.recorded = 0
        self.lost = 0
        self.counts = {}
        # By device, what PyTorch said when it was asked last.
        self.statistics = {}
        self.drained_events = 0
        self.drained_at = -BETWEEN_ERRORS_SECONDS
        self.error_waits = False
        self.entries = FIRST_ENTRIES
        self.thresholds = gc.get_threshold()
        # By device, the last event that was written.
        self.last = {}
        # PyTorch imports this package when it first looks up the names of frames. An import in our thread would meet an
        # import of the job's half way. A training job imports the package anyway, with its first optimiser.
        importlib.import_module("torch._inductor")
        _keep_history(self.entries)
        torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        atexit.register(self.end)
        self.thread = threading.Thread(target=self._run, name="vramshim", daemon=True)
        self.thread.start()

    def _collect_again(self):
        if gc.get_threshold()[0] == NO_COLLECTION:
            gc.set_threshold(*self.thresholds)

    def forget(self):
        self._collect_again()
        self.stop.set()
        self.file = None

    def _run(self):
        interval, drained = INTERVAL_SECONDS, time.monotonic()
        while not self.stop.wait(LOOK_SECONDS):
            with self.lock:
                new = self._count()[1] - self.drained_events
            begin = time.monotonic()
            nothing = new == 0 and not self.error_waits
            if nothing or begin - drained < interval and new < self.entries // 2:
                continue
            self.drain()
            drained = time.monotonic()
            wanted = (drained - begin) / LARGEST_SHARE_OF_TIME
            interval = min(max(wanted, INTERVAL_SECONDS), LONGEST_INTERVAL_SECONDS)

    def _out_of_memory(self, *_):
        if time.monotonic() - self.drained_at < BETWEEN_ERRORS_SECONDS:
            self.error_waits = True
        else:
            self.drain()

    def end(self):
        self.drain()
        self.stop.set()

    def drain(self):
        if self.stop.is_set() or not self.lock.acquire(timeout=5):
            return
        # A collection of all objects of the job costs more than the whole drain. What the job sets meanwhile stays.
        thresholds = gc.get_threshold()
        # The job may have read ours, and set it again later.
        if thresholds[0] != NO_COLLECTION:
            self.thresholds = thresholds
        if thresholds[0] > 0:
            gc.set_threshold(NO_COLLECTION, *thresholds[1:])
        try:
            self._drain()
        except Exception as problem:
            global _why_nothing
            _why_nothing = None
            self.stop.set()
            _library.say(f"PyTorch's tensors are not recorded from now on: {problem}")
        finally:
            self._collect_again()
            self.drained_at = time.monotonic()
            self.lock.release()

    def _drain(self):
        self.error_waits = False
        served, events_so_far = self._count()
        if self.file is None:
            if served == 0:
                return
            self._open()
        snapshot = torch._C._cuda_memorySnapshot(None)
        self.drained_events = events_so_far
        lines = []
        if not self.has_settings:
            self.has_settings = True
            settings = snapshot.get("allocator_settings", {}).items()
            lines.extend(f"C\t{_escaped(name)}\t{_escaped(str(value))}\n" for name, value in settings)
        time_us = 0
        ids = {}
        for device, events in enumerate(snapshot["device_traces"]):
            for event in self._new(device, events):
                action = event["action"]
                time_us = event["time_us"]
                if action == "alloc":
                    self.recorded += 1
                    stack = self._stack(event["frames"], ids, lines)
                    size, stream = event["size"], event["stream"]
                    self._allocated(lines, time_us, device, event["addr"], size, stream, stack, None, event.get("pool_id"))
                elif action == "free_completed":
                    self._freed(lines, time_us, event["addr"])
                elif action in ("segment_alloc", "segment_map"):
                    lines.append(f"S\t{time_us}\t{device}\t{event['addr']}\t{event['size']}\n")
                elif action in ("segment_free", "segment_unmap"):
                    lines.append(f"U\t{time_us}\t{device}\t{event['addr']}\t{event['size']}\n")
                elif action == "oom":
                    stack = self._stack(event["frames"], ids, lines)
                    lines.append(f"O\t{time_us}\t{device}\t{event['size']}\t{stack}\n")
        lost = served - self.recorded
        if lost > self.lost and time_us:
            self.lost = lost
            self._catch_up(lines, snapshot["segments"], time_us, ids)
            if self.entries < MOST_ENTRIES:
                self.entries *= 4
                self.last.clear()
                _keep_history(self.entries)
        if lines:
            lines.extend(self._balance(time_us))
            lines.append(f"D\t{time_us}\t{self.recorded}\t{self.lost}\n")
            self._write("".join(lines))

    def _open(self):
        global _why_nothing
        _why_nothing = None
        path = _library.text(self.library.vramshim_journal_path)
        if not path:
            raise RuntimeError("the process keeps no journal")
        path = os.path.splitext(path)[0] + ".tensors"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.file = os.open(path, flags, 0o600)
        self._write(f"vramshim-pytorch\t{VERSION}\t{os.getpid()}\t{_escaped(torch.__version__)}\n")

    def _write(self, text):
        data = text.encode("utf-8", "backslashreplace")
        if self.written + len(data) > MOST_BYTES:
            raise RuntimeError(f"the file has reached {MOST_BYTES >> 30} GiB")
        self.written += len(data)
        while data:
            data = data[os.write(self.file, data) :]

    def _new(self, device, events):
        """The events that were not written yet."""
        last = self.last.get(device)
        new = 0
        if last is not None:
            # The list may have dropped the last one; then all are new.
            for place in range(len(events) - 1, -1, -1):
                if events[place]["time_us"] == last[0] and _identity(events[place]) == last:
                    new = place + 1
                    break
        if events:
            self.last[device] = _identity(events[-1])
        return events[new:]

    def _count(self):
        """How many tensors PyTorch has allocated so far, and how many it has allocated or freed.

        The job may begin PyTorch's own counts anew.
        """
        total = [0, 0]
        for device in range(torch.cuda.device_count()):
            self.statistics[device] = torch._C._cuda_memoryStats(device)
            stat = self.statistics[device]["allocation"]["all"]
            now = (stat["allocated"], stat["freed"])
            before, sums = self.counts.get(device, ((0, 0), (0, 0)))
            sums = tuple(
                sum_before + (new - old if new >= old else new) for sum_before, new, old in zip(sums, now, before)
            )
            self.counts[device] = (now, sums)
            total[0] += sums[0]
            total[1] += sums[0] + sums[1]
        return total

    def _stack(self, frames, ids, lines):
        """The number of a stack. `ids` has the numbers by the identities of frames, which hold for one snapshot."""
        quick = tuple(map(id, frames))
        number = ids.get(quick)
        if number is None:
            key = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
            number = self.stacks.get(key)
            if number is None:
                number = self.stacks[key] = len(self.stacks)
                parts = (f"\t{_escaped(file)}\t{line}\t{_escaped(name)}" for file, line, name in key)
                lines.append(f"T\t{number}{''.join(parts)}\n")
            ids[quick] = number
        return number

    def _balance(self, time_us):
        """PyTorch's own sums of each device that it uses."""
        for device, told in self.statistics.items():
            names = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
            sums = [told.get(name, {}).get("all", {}).get("current", NOT_KNOWN) for name in names]
            if any(total not in (0, NOT_KNOWN) for total in sums):
                yield f"B\t{time_us}\t{device}\t" + "\t".join(map(str, sums)) + "\n"

    def _allocated(self, lines, time_us, device, address, size, stream, stack, allocated, pool):
        self.live[address] = (device, size)
        allocated = NOT_KNOWN if allocated is None else allocated
        pool = NOT_KNOWN if pool is None else f"{pool[0]}.{pool[1]}"
        lines.append(f"A\t{time_us}\t{device}\t{address}\t{size}\t{stream}\t{stack}\t{allocated}\t{pool}\n")

    def _freed(self, lines, time_us, address):
        device, size = self.live.pop(address, (0, 0))
        lines.append(f"F\t{time_us}\t{device}\t{address}\t{size}\n")

    def _catch_up(self, lines, segments, time_us, ids):
        """Events were lost. What lives is known nevertheless."""
        there = {}
        for segment in segments:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    there[block["address"]] = (segment, block)
        for address in [address for address in self.live if address not in there]:
            self._freed(lines, time_us, address)
        for address, (segment, block) in there.items():
            if address not in self.live:
                stack = self._stack(block.get("frames", ()), ids, lines)
                size, pool = block["requested_size"], segment.get("segment_pool_id")
                device, stream = segment["device"], segment["stream"]
                self._allocated(lines, time_us, device, address, size, stream, stack, block["size"], pool)
