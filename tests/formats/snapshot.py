"""Checks memory snapshots as PyTorch's MemoryViz reads them, and prints the figures of each as a line of JSON.

usage: snapshot.py [--live] FILE...

MemoryViz knows some opcodes of pickles alone, draws blocks that tile their segments, and plays the trace backwards. With
`--live` nothing is checked, and the live blocks alone are printed.
"""

import collections
import json
import pickle
import pickletools
import sys

OPCODES = """PROTO STOP MARK BININT1 BININT2 BININT LONG1 BINFLOAT FRAME NONE NEWTRUE NEWFALSE SHORT_BINUNICODE BINUNICODE
    EMPTY_LIST EMPTY_DICT TUPLE2 APPEND APPENDS SETITEM SETITEMS MEMOIZE BINGET LONG_BINGET""".split()
# Made-up addresses, of memory that has no entries in the trace, begin here.
MADE_UP = 1 << 52
ENTRY = "action addr compile_context frames pool_id size stream time_us user_metadata".split()


def check_opcodes(data):
    counts = []
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in OPCODES, f"MemoryViz does not know {opcode.name}"
        if opcode.name == "LONG1":
            assert abs(argument) < 1 << 63, "MemoryViz computes with numbers of 8 bytes at most"
        if opcode.name == "MARK":
            counts.append(0)
        elif opcode.name in ("APPENDS", "SETITEMS"):
            count = counts.pop()
            assert opcode.name == "SETITEMS" or count <= 1000, "JavaScript passes a batch as arguments"
        elif counts:
            counts[-1] += len(opcode.stack_after) - len(opcode.stack_before)


def live(page):
    """Device, address, size and requested bytes of each live block."""
    return [
        [segment["device"], block["address"], block["size"], block["requested_size"]]
        for segment in page["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def check_segment(segment, sums):
    assert segment["stream"] == int(segment["is_expandable"])
    own = collections.Counter(reserved=segment["total_size"])
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at and 0 <= block["requested_size"] <= block["size"] > 0, "blocks tile their segment"
        assert block["state"] in ("active_allocated", "inactive") and isinstance(block["frames"], list)
        if block["state"] == "active_allocated":
            own.update(allocated=block["size"], requested=block["requested_size"])
        at += block["size"]
    assert at == segment["address"] + segment["total_size"], "blocks tile their segment"
    assert segment["allocated_size"] == segment["active_size"] == own["allocated"]
    assert segment["requested_size"] == own["requested"]
    for name in ("reserved", "allocated", "requested"):
        sums[segment["device"]][name] = sums[segment["device"]].get(name, 0) + own[name]


def around(segments, address):
    """Start and end of the segment at an address."""
    start = max((start for start in segments if start <= address), default=0)
    return start, start + segments.get(start, 0)


def play_backwards(trace, segments, blocks):
    """`blocks` has the addresses of live blocks, and whether the block waits for its free to be completed."""
    for entry in reversed(trace):
        action, size = entry["action"], entry["size"]
        assert isinstance(entry["frames"], list) and entry["time_us"] >= 0
        if action == "oom":
            assert entry["device_free"] >= 0
            continue
        assert sorted(entry) == ENTRY, entry
        # MemoryViz joins pieces of equal streams, and writes over the stream of entries if all have stream 0.
        assert "map" not in action or entry["stream"] == 1
        address = entry["addr"]
        start, end = around(segments, address)
        if action in ("free_completed", "alloc"):
            assert address + size <= end, "a block outside of all segments"
        if action in ("segment_alloc", "segment_map"):
            assert not any(address <= block < address + size for block in blocks), "a block in memory that begins"
        if action == "free_completed":
            assert address not in blocks, "the block was freed, and then again"
            blocks[address] = True
        elif action == "free_requested":
            assert blocks[address] is True, "a free that is not completed"
            blocks[address] = False
        elif action == "alloc":
            assert blocks.pop(address) is False, "a block that is not there"
        elif action == "segment_free":
            assert end <= address, "two segments at one address"
            segments[address] = size
        elif action == "segment_alloc":
            assert segments.pop(address) == size, "the segment that begins"
        elif action == "segment_unmap":
            before, end = around(segments, address - 1)
            if before in segments and end == address:
                address, size = before, size + segments.pop(before)
            segments[address] = size + segments.pop(address + size, 0)
        else:
            assert action == "segment_map" and address + size <= end, "the segment ends inside what was mapped"
            pieces = {start: address - start, address + size: end - address - size}
            del segments[start]
            segments.update({start: size for start, size in pieces.items() if size})
    # Only memory without entries was there before the first entry.
    assert all(address >= MADE_UP for address in [*segments, *blocks]), (segments, blocks)


def figures(path, is_checked):
    with open(path, "rb") as file:
        data = file.read()
    page = pickle.loads(data)
    told = {"live": sorted(live(page))}
    if not is_checked:
        return told
    check_opcodes(data)
    assert sorted(page) == ["allocator_settings", "device_traces", "external_annotations", "segments"]
    sums, actions, lines = collections.defaultdict(dict), collections.Counter(), collections.defaultdict(list)
    for segment in page["segments"]:
        check_segment(segment, sums)
    for device, trace in enumerate(page["device_traces"]):
        segments = {one["address"]: one["total_size"] for one in page["segments"] if one["device"] == device}
        play_backwards(trace, segments, {block[1]: False for block in told["live"] if block[0] == device})
        actions.update(entry["action"] for entry in trace)
        for entry in trace:
            for frame in entry["frames"][:1]:
                lines[frame["line"]].append(id(entry["frames"]))
    # For each line the entries, and their stacks: equal ones are one list.
    lines = {line: [len(lists), len(set(lists))] for line, lists in lines.items()}
    return {**told, "sums": sums, "actions": actions, "lines": lines}


files = [argument for argument in sys.argv[1:] if argument != "--live"]
for path in files:
    print(json.dumps(figures(path, len(files) == len(sys.argv[1:]))))
