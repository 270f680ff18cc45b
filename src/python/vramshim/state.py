"""Tells which tensors of PyTorch are live, with the Python stack of each, about once a second (`--torch state`).

PyTorch keeps the stacks of live tensors only (`enabled="state"`), so there is no history to read. A thread compares
PyTorch's snapshot with the one before, and writes what differs to a file that has the journal's name with another ending:
early, about once a second, at each `OutOfMemoryError` and at the end. Tensors that come and go between two
snapshots are not seen. A job that is killed has its last whole snapshot. docs/journal-format.md describes the file.
"""

import atexit
import collections
import gc
import os
import queue
import signal
import sys
import threading
import time

import torch

from . import history as _history
from . import library as _library

VERSION = 1
# Stands for a value that PyTorch does not tell.
NOT_KNOWN = "-"
MOST_BYTES = 4 << 30
# As many new objects as no job makes until Python looks for garbage.
NO_COLLECTION = 1 << 26
# Snapshots are taken this often, but seldom enough for their share of the time. The first ones follow each other sooner.
INTERVAL_SECONDS, FIRST_INTERVAL_SECONDS = 1.0, 0.05
LARGEST_SHARE_OF_TIME = 0.005
# Failures of which a line on stderr tells who held the memory.
MOST_TOLD = 3
# A search for the largest batch fails often. Snapshots at failures may take this many seconds, and this share of the time.
FAILURES_SECONDS, FAILURES_SHARE_OF_TIME = 1.0, 0.02
# A thread of the job waits at most this long for the snapshot at its failure, and for the last one.
LONGEST_WAIT_SECONDS, LONGEST_LAST_WAIT_SECONDS = 10, 30
# PyTorch's sums are written again if all is as before, once in so many bytes: a reader of the file's end finds them.
SUMS_BYTES = 8 << 10
# The periodic snapshots may write this many bytes, and this many more in each second. Those at failures may write more.
FIRST_BYTES, BYTES_A_SECOND, FAILURES_BYTES = 32 << 20, 4 << 10, 64 << 20


_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_GLOBALS = globals()


def pool_text(pool):
    """The field of a pool of PyTorch (a pair of numbers, or `None`)."""
    return NOT_KNOWN if pool is None else f"{pool[0]}.{pool[1]}"


def _escaped(text):
    if "\\" in text or "\t" in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    return text


def _mebibytes(size):
    return f"{size / (1 << 20):.1f} MiB"


def _calling_frames():
    """The frames of this thread that are not of this package, innermost first, in PyTorch's form."""
    frames, frame = [], sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_HERE):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name})
        frame = frame.f_back
    return frames


def _line(frames):
    """The innermost line outside of PyTorch, or the innermost of all; `None` without a stack."""
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line, name = (outside or list(frames) or [(None, 0, "")])[0]
    return file and f"{file}:{line} {name}"


class State:
    """Writes the file beside the journal."""

    MODE = "state"

    def __init__(self, library):
        self.library = library
        self.stop = threading.Event()
        # What ended the recording, if it was an error.
        self.broken = False
        self.file = None
        self.written = 0
        self.has_settings = False
        self.stacks = {}
        # By address, device, size and number of the stack.
        self.live = {}
        self.segments = {}
        self.recorded = 0
        self.lost = 0
        self.counts = {}
        # By device, what PyTorch said when it was asked last, and just before when that was.
        self.statistics, self.asked_us = {}, 0
        # The sums that the file has last, by device, and how long it was then.
        self.sums, self.sums_end = {}, 0
        # Until when the tensors in the file are complete.
        self.until_us = 0
        self.drained_events = 0
        # What the thread is asked to write, each with a lock that it releases then.
        self.asked = queue.SimpleQueue()
        self.began = time.monotonic()
        self.drain_seconds = self.at_failures_seconds = 0.0
        self.failures_told = 0
        # Failures that have no snapshot of their own.
        self.failures_left_out = 0
        self.left_out_is_told = False
        self.thresholds = gc.get_threshold()
        self._keep()
        threading.Thread(target=self._work, name="vramshim", daemon=True).start()
        torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        atexit.register(self.end)

    def _keep(self):
        """Lets PyTorch keep the Python stack of each live tensor."""
        _history.keep("state", "state", "python", 1, True, False, False, [])

    def _work(self):
        # A line on a broken pipe is no reason to end the job.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
        try:
            self._run()
        except Exception as problem:
            self._failed(problem)
        while not self.asked.empty():
            self.asked.get()[1].release()

    def _goes_on(self, seconds):
        """Waits, and writes meanwhile what threads of the job ask for. Whether the recording goes on."""
        until = time.monotonic() + seconds
        while not self.stop.is_set():
            try:
                failure, done = self.asked.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            self.drain(failure)
            if failure is not None:
                self.at_failures_seconds += self.drain_seconds
            done.release()
        return not self.stop.is_set()

    def _failed(self, problem):
        """The job is worth more than the record of it."""
        if not self.stop.is_set():
            self.broken = True
            self.stop.set()
            _library.say(f"PyTorch's tensors are not recorded from now on: {problem}")

    def _run(self):
        wait = FIRST_INTERVAL_SECONDS
        next_drain = 0.0
        while self._goes_on(wait):
            self._say_what_is_left_out()
            begin = time.monotonic()
            is_new = self._count()[1] != self.drained_events
            elapsed = begin - self.began
            if is_new and begin >= next_drain and self.written < FIRST_BYTES + BYTES_A_SECOND * elapsed:
                self.drain()
                now = time.monotonic()
                next_drain = now + (now - begin) / LARGEST_SHARE_OF_TIME
            else:
                self._write_sums(is_new)
            wait = min(INTERVAL_SECONDS, elapsed)

    def _out_of_memory(self, device=0, size=0, *_):
        """PyTorch calls this before it raises its error, and holds no lock."""
        try:
            if self.stop.is_set() or self._leaves_out():
                return
            done = self._ask((device, size, _calling_frames(), time.time_ns() // 1000))
        except RecursionError:
            return
        except Exception as problem:
            trace = problem.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            # A signal handler of the job may raise at any moment, and the job wants that.
            if trace.tb_frame.f_globals is not _GLOBALS:
                raise
            return
        if done is not None and not done.acquire(True, LONGEST_WAIT_SECONDS):
            self.at_failures_seconds += LONGEST_WAIT_SECONDS

    def _leaves_out(self):
        """Whether a failure gets no snapshot of its own."""
        elapsed = time.monotonic() - self.began
        is_left_out = (
            self.at_failures_seconds > FAILURES_SECONDS + FAILURES_SHARE_OF_TIME * elapsed
            or self.written > FIRST_BYTES + FAILURES_BYTES + BYTES_A_SECOND * elapsed
        )
        self.failures_left_out += is_left_out
        return is_left_out

    def _say_what_is_left_out(self):
        if self.failures_left_out and not self.left_out_is_told:
            self.left_out_is_told = True
            _library.say("some of PyTorch's failures have no snapshot of tensors, which would take too long")

    def _ask(self, failure=None):
        """Asks the thread, which no signal interrupts, to write. The lock that this returns is free then."""
        done = threading.Lock()
        done.acquire()
        self.asked.put((failure, done))
        return None if self.stop.is_set() else done

    def ask(self):
        """Writes what is new, and waits for that."""
        done = self._ask()
        if done is not None:
            done.acquire(True, LONGEST_LAST_WAIT_SECONDS)

    def forget(self):
        """In a forked child: the thread is gone, and the file is the parent's."""
        self._collect_again()
        # The thread may have held a lock of the event.
        self.stop = threading.Event()
        self.stop.set()
        self.file = None

    def end(self):
        if self.stop.is_set():
            return
        try:
            self.ask()
            self._say_what_is_left_out()
        finally:
            self.stop.set()
            # Wakes the thread.
            self._ask()

    def _collect_again(self):
        if gc.get_threshold()[0] == NO_COLLECTION:
            gc.set_threshold(*self.thresholds)

    def drain(self, failure=None):
        """Writes what is new, in our thread. `failure`: the device, the bytes asked for in vain, the frames and the time."""
        begin = time.monotonic()
        if self.stop.is_set():
            return
        # A collection of all objects of the job costs more than the whole drain. What the job sets meanwhile stays.
        thresholds = gc.get_threshold()
        # The job may have read ours, and set it again later.
        if thresholds[0] != NO_COLLECTION:
            self.thresholds = thresholds
        if thresholds[0] > 0:
            gc.set_threshold(NO_COLLECTION, *thresholds[1:])
        try:
            lines = self._drain(failure)
            if lines:
                self._write("".join(lines))
        except Exception as problem:
            self._failed(problem)
        finally:
            self._collect_again()
            self.drain_seconds = time.monotonic() - begin

    def _drain(self, failure):
        served, self.drained_events = self._count()
        if not self._is_open(served > 0 or failure is not None):
            return []
        lines = []
        told = self._snapshot(lines)
        time_us = time.time_ns() // 1000
        ids = {}
        self._compare_segments(lines, told["segments"], time_us)
        self.recorded += self._catch_up(lines, told["segments"], time_us, ids)
        if failure is not None:
            device, size, frames, told_us = failure
            # PyTorch tells the observer what it asked the driver for. What it keeps last is the request.
            traces = told["device_traces"]
            last = traces[device][-1] if device < len(traces) and traces[device] else {}
            size = last["size"] if last.get("action") == "oom" else size
            stack = self._stack(frames, {}, lines)
            # The snapshot may be late, but the thread of the job waits for it: it shows what lived at the failure.
            lines.append(f"O\t{told_us}\t{device}\t{size}\t{stack}\n")
            self._tell(device)
        self._ended(lines, time_us)
        return lines

    def _tell(self, device):
        """Says what the library's own lines cannot: which tensors are in PyTorch's segments."""
        self.failures_told += 1
        if self.failures_told > MOST_TOLD:
            return
        lines = {number: _line(frames) for frames, number in self.stacks.items()}
        sums = collections.Counter()
        for on, size, stack in self.live.values():
            if on == device:
                sums[lines.get(stack)] += size
        segments = sum(size for on, size, _ in self.segments.values() if on == device)
        if not segments:
            return
        live = sum(sums.values())
        text = f"PyTorch's tensors have {_mebibytes(live)} of its segments of {_mebibytes(segments)}"
        for line, size in sums.most_common(1):
            part = "most" if 2 * size > live else "the largest part"
            text += f"; {part} of it: {_mebibytes(size)} of {line or 'no line of Python (autograd, or older than the record)'}"
        _library.say(f"GPU {device} at this failure: {text}")

    def _snapshot(self, lines):
        told = _history.snapshot()
        if not self.has_settings:
            self.has_settings = True
            settings = told.get("allocator_settings", {}).items()
            lines.extend(f"C\t{_escaped(name)}\t{_escaped(str(value))}\n" for name, value in settings)
        return told

    def _ended(self, lines, time_us):
        self.until_us, self.sums_end = time_us, -SUMS_BYTES
        lines.extend(self._balance())

    def _write_sums(self, is_new):
        """Writes PyTorch's sums of now. If no tensor is new, those in the file are true until now."""
        if self.file is not None:
            if is_new:
                self.sums_end = -SUMS_BYTES
            else:
                self.until_us = self.asked_us
            self._write("".join(self._balance()))

    def _is_open(self, is_used):
        """Whether there is a file. The first use makes it."""
        if self.file is None and is_used:
            path = _library.text(self.library.vramshim_journal_path)
            if not path:
                raise RuntimeError("the process keeps no journal")
            path = os.path.splitext(path)[0] + ".tensors"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self.file = os.open(path, flags, 0o600)
            version = _escaped(torch.__version__)
            self._write(f"vramshim-pytorch\t{VERSION}\t{os.getpid()}\t{version}\t{self.MODE}\n")
        return self.file is not None

    def _write(self, text):
        data = text.encode("utf-8", "backslashreplace")
        if self.written + len(data) > MOST_BYTES:
            raise RuntimeError(f"the file has reached {MOST_BYTES >> 30} GiB")
        self.written += len(data)
        while data:
            data = data[os.write(self.file, data) :]

    def _count(self):
        """How many tensors PyTorch has allocated so far, and how many it has allocated or freed.

        The job may begin PyTorch's own counts anew.
        """
        total = [0, 0]
        self.asked_us = time.time_ns() // 1000
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

    def _balance(self):
        """PyTorch's own sums of each device that it has used, unless they are as before, and until when tensors are told."""
        sums = {}
        for device, told in self.statistics.items():
            names = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
            values = [told.get(name, {}).get("all", {}).get("current", NOT_KNOWN) for name in names]
            if device in self.sums or any(value not in (0, NOT_KNOWN) for value in values):
                sums[device] = "\t".join(map(str, values))
        if sums != self.sums or self.written >= self.sums_end + SUMS_BYTES:
            self.sums, self.sums_end = sums, self.written
            yield from (f"B\t{self.asked_us}\t{device}\t{values}\n" for device, values in sums.items())
        yield f"D\t{self.until_us}\t{self.recorded}\t{self.lost}\n"

    def _compare_segments(self, lines, segments, time_us):
        """Writes which segments came and went. An expandable one that grew went, and came anew."""
        there = {
            segment["address"]: (segment["device"], segment["total_size"], pool_text(segment.get("segment_pool_id")))
            for segment in segments
        }
        for letter, ones, others in (("U", self.segments, there), ("S", there, self.segments)):
            for address, known in ones.items():
                if others.get(address, ())[:2] != known[:2]:
                    device, size, pool = known
                    lines.append(f"{letter}\t{time_us}\t{device}\t{address}\t{size}\t{pool}\n")
        self.segments = there

    def _catch_up(self, lines, segments, time_us, ids):
        """Writes how the tensors of a snapshot differ from those that are known to live. Returns how many came."""
        there = {}
        for segment in segments:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    stack = self._stack(block.get("frames", ()), ids, lines)
                    there[block["address"]] = ((segment["device"], block["requested_size"], stack), segment, block)
        # The frees come first: no moment in between has more than there was.
        for address in [address for address, known in self.live.items() if there.get(address, [0])[0] != known]:
            lines.append(f"F\t{time_us}\t{self.live.pop(address)[0]}\t{address}\n")
        came = [(address, *known) for address, known in there.items() if address not in self.live]
        for address, known, segment, block in came:
            self.live[address] = device, size, stack = known
            rest = f"{segment['stream']}\t{stack}\t{block['size']}\t{pool_text(segment.get('segment_pool_id'))}"
            lines.append(f"A\t{time_us}\t{device}\t{address}\t{size}\t{rest}\n")
        return len(came)
