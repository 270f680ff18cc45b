"""Records PyTorch's tensors with Python stacks beside the journal. PyTorch keeps its allocator.

`state` has what both ways of recording share, and the one that `vramshim run` chooses. Here is `--torch record`, which
tells each tensor and its times.

PyTorch's allocator keeps its last events in memory. Twice a second, or when most of them are new, a thread writes the
new ones to a file that has the journal's name with another ending. So a killed process loses at most the last second.
docs/journal-format.md describes the file.

PyTorch's list is never cleared: threads of autograd run without the interpreter's lock, and go on allocating while a
drain reads the list. What a drain has read already, the next one finds again and leaves out.
"""

import os
import time

import torch

from . import history as _history
from . import library as _library
from . import state as _state

_State = _state.State

# A drain reads PyTorch's whole list and all live tensors. So a job for which that takes long is drained less often, but
# at least once a second.
INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.5, 1.0
LARGEST_SHARE_OF_TIME = 0.05
# How often the number of new events is looked at, unless the list is full sooner.
LOOK_SECONDS, SHORTEST_LOOK_SECONDS = 0.05, 0.002
# A drain reads old events of the list again, so it waits until so many are new. Of three events that older versions of
# PyTorch keep, two are counted.
NEW_SHARE = 0.6
# An error of out of memory is written at once, because the job may end. A search for the largest batch raises many, so
# those that follow within this time wait for the thread.
BETWEEN_ERRORS_SECONDS = 1.0
# Events that PyTorch keeps; more after events were lost.
FIRST_ENTRIES, MOST_ENTRIES = 1 << 14, 1 << 20

_recorder = None
# The class of the recorder.
_mode = _State
# Why nothing is recorded. None if a line said so, or if tensors are recorded.
_why_nothing = "PyTorch has not used CUDA"
# The job has called PyTorch's functions for the history, which has one reader only.
_job_reads = False


def start(mode):
    """Records from the moment on at which the job first uses CUDA. `mode`: `state` or `record`."""
    global _why_nothing, _mode
    _mode = _State if mode == "state" else _History
    library = _library.preloaded()
    if library is None:
        raise RuntimeError("libvramshim.so is not preloaded: start the job with vramshim run")
    if not hasattr(torch._C, "_cuda_init"):
        return
    if _history.record_history is None:
        _why_nothing = None
        raise RuntimeError(f"PyTorch {torch.__version__} keeps no such memory history; 2.1 and newer do")
    _give_memory_back_with_the_cache(library)
    for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, _leaving_the_history(getattr(torch._C, name)))
    torch._C._cuda_memorySnapshot = _history.memory_snapshot
    if torch.cuda.is_initialized():
        _begin(library)
    else:
        # Recording would initialise CUDA, which a process that forks must not have done. PyTorch calls these when it has.
        torch.cuda._queued_calls.append((lambda: _begin(library), []))


def why_nothing():
    """Why no tensor was recorded, unless tensors were recorded or a line has said why."""
    return None if _recorder is not None and (_recorder.file is not None or _recorder.broken) else _why_nothing


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
        _recorder.ask()


def _begin(library):
    global _recorder, _why_nothing
    if _recorder is not None or _job_reads:
        return
    try:
        if getattr(torch._C, "_cuda_isHistoryEnabled", bool)():
            _leave()
            return
        _recorder = _mode(library)
        _why_nothing = "PyTorch has made no tensor on a GPU"
    except Exception as problem:  # such as RuntimeError, if the job uses another allocator
        _why_nothing = None
        _library.say(f"PyTorch's tensors are not recorded: {problem}")


def _leave():
    """Leaves PyTorch's history to the job."""
    global _job_reads, _why_nothing
    if not _job_reads:
        _job_reads, _why_nothing = True, None
        if _recorder is not None:
            _recorder.end()
        _library.say("the job records PyTorch's memory history itself; tensors are not recorded from now on")


def _leaving_the_history(original):
    """A function of PyTorch's for the job. Before its first call ends, our recording ends."""

    def function(*arguments, **named):
        _leave()
        return original(*arguments, **named)

    return function


def _in_forked_child():
    # The thread is gone, and the file is the parent's.
    global _recorder
    _history.forget()
    if _recorder is not None:
        _recorder.forget()
        _recorder = None


os.register_at_fork(after_in_child=_in_forked_child)


def _identity(event):
    # An event of out of memory has no address.
    return event["time_us"], event["action"], event.get("addr"), event["size"]


class _History(_State):
    MODE = "record"

    def __init__(self, library):
        self.drained_at = -BETWEEN_ERRORS_SECONDS
        self.error_waits = False
        self.entries = FIRST_ENTRIES
        # By device, the last event that was written.
        self.last = {}
        super().__init__(library)

    def _keep(self):
        """Lets PyTorch keep its last events, with the Python stack of each allocation, in a new list."""
        _history.keep("all", "alloc", "python", self.entries, True, False, False, ["free_requested", "snapshot"])

    def _run(self):
        interval, drained, wait = INTERVAL_SECONDS, time.monotonic(), LOOK_SECONDS
        told = looked = drained
        seen = self.drained_events
        while self._goes_on(wait):
            events, begin = self._count()[1], time.monotonic()
            new = events - self.drained_events
            # The next look is when the list has enough new events, at the pace of late.
            enough, pace = self.entries * NEW_SHARE, (events - seen) / (begin - looked)
            left = enough - new if new < enough else enough
            wait = min(max(left / pace if pace else 1, SHORTEST_LOOK_SECONDS), LOOK_SECONDS)
            seen, looked = events, begin
            nothing = new == 0 and not self.error_waits
            if nothing and begin - told >= LONGEST_INTERVAL_SECONDS:
                self._write_sums(False)
                told = begin
            if nothing or begin - drained < interval and new < enough:
                continue
            self.drain()
            drained = time.monotonic()
            wanted = (drained - begin) / LARGEST_SHARE_OF_TIME
            interval = min(max(wanted, INTERVAL_SECONDS), LONGEST_INTERVAL_SECONDS)

    def _leaves_out(self):
        waits = time.monotonic() - self.drained_at < BETWEEN_ERRORS_SECONDS
        self.error_waits = self.error_waits or waits
        return waits

    def drain(self, failure=None):
        super().drain(failure)
        self.drained_at = time.monotonic()

    def _drain(self, _failure):
        self.error_waits = False
        served, events_so_far = self._count()
        lines = []
        if not self._is_open(served > 0):
            return lines
        snapshot = self._snapshot(lines)
        self.drained_events = events_so_far
        news = [self._new(device, events) for device, events in enumerate(snapshot["device_traces"])]
        if any(is_cut for _, is_cut in news) and self.entries < MOST_ENTRIES:
            # A longer list is a new one. What comes until then has no event, so nothing else is done before.
            self.entries *= 2
            self.last.clear()
            self._keep()
        time_us, ids = 0, {}
        for device, (events, _) in enumerate(news):
            if events:
                time_us = events[-1]["time_us"]
                self._tell_events(lines, device, events, ids)
        lost = served - self.recorded
        if lost > self.lost and time_us:
            self.lost = lost
            # Expandable segments come in pieces, which a snapshot does not tell.
            whole = [segment for segment in snapshot["segments"] if not segment.get("is_expandable")]
            self._compare_segments(lines, whole, time_us)
            self._catch_up(lines, snapshot["segments"], time_us, ids)
        if lines:
            self._ended(lines, time_us)
        return lines

    def _tell_events(self, lines, device, events, ids):
        """Writes events. There are many, so a tensor takes few steps here."""
        live, add, count = self.live, lines.append, 0
        # The text of each address. Of tensors with the same frames, stream and pool: those, the number of the stack, how the
        # lines end, and what came after the last of them. Jobs repeat themselves, so that is often what comes now.
        texts, kinds, kind = {}, {}, [None] * 4
        for event in events:
            action, time_us, address = event["action"], event["time_us"], event.get("addr")
            place = texts.get(address)
            if place is None:
                place = texts[address] = f"{device}\t{address}"
            if action == "alloc":
                size, origin = event["size"], (event["frames"], event["stream"], event.get("pool_id"))
                if kind[3] is None or kind[3][0] != origin:
                    key = (*map(id, origin[0]), *origin[1:])
                    if key not in kinds:
                        stack, pool = self._stack(origin[0], ids, lines), _state.pool_text(origin[2])
                        kinds[key] = [origin, stack, f"{origin[1]}\t{stack}\t{_state.NOT_KNOWN}\t{pool}\n", None]
                    kind[3] = kinds[key]
                kind = kind[3]
                live[address] = device, size, kind[1]
                add(f"A\t{time_us}\t{place}\t{size}\t{kind[2]}")
                count += 1
            elif action == "free_completed":
                live.pop(address, None)
                add(f"F\t{time_us}\t{place}\n")
            elif action in ("segment_alloc", "segment_map"):
                pool = _state.pool_text(event.get("pool_id"))
                if action == "segment_alloc":
                    self.segments[address] = device, event["size"], pool
                add(f"S\t{time_us}\t{place}\t{event['size']}\t{pool}\n")
            elif action in ("segment_free", "segment_unmap"):
                self.segments.pop(address, None)
                add(f"U\t{time_us}\t{place}\t{event['size']}\n")
            elif action == "oom":
                add(f"O\t{time_us}\t{device}\t{event['size']}\t{self._stack(event['frames'], ids, lines)}\n")
        self.recorded += count
        # They refer to each other.
        for known in kinds.values():
            known[3] = None

    def _new(self, device, events):
        """The events that were not written yet, and whether the list has dropped some of them."""
        last = self.last.get(device)
        if events:
            self.last[device] = _identity(events[-1])
        if last is None:
            return events, len(events) >= self.entries
        for place in range(len(events) - 1, -1, -1):
            if events[place]["time_us"] == last[0] and _identity(events[place]) == last:
                return events[place + 1 :], False
        return events, True
