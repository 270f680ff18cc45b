"""Reads exported files with the readers of each format, and prints what they say as JSON.

usage: readers.py FOLDER

FOLDER has out.parquet and out.perfetto.
"""

import json
import sys
from pathlib import Path

import duckdb
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

COUNTER = 4


def tables(folder):
    path = str(folder / "out.parquet")
    query = f"select count(*), sum(requested) filter (event = 'alloc'), max(address) from '{path}'"
    events, requested, highest = duckdb.sql(query).fetchall()[0]
    table = parquet.read_table(path)
    allocations = table.filter(compute.equal(table["event"], "alloc"))
    told = {
        "duckdb": [events, int(requested), highest],
        "pyarrow": [
            len(table),
            compute.sum(allocations["requested"]).as_py(),
            compute.max(table["address"]).as_py(),
        ],
        "schema": parquet.read_metadata(path).metadata[b"vramshim.schema_version"].decode(),
        "groups": parquet.read_metadata(path).num_row_groups,
    }
    if (folder / "out.stacks.parquet").exists():
        joined = f"""select distinct f.line from '{path}' e join '{folder}/out.stacks.parquet' s using (stack)
            join '{folder}/out.frames.parquet' f using (frame) where s.depth = 0"""
        told["lines"] = sorted(line for (line,) in duckdb.sql(joined).fetchall())
    return told


def perfetto(folder):
    trace = Trace()
    trace.ParseFromString((folder / "out.perfetto").read_bytes())
    size = trace.ByteSize()
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == size, "fields that the published protos do not have"
    names, counters, instants = {}, {}, []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            names[packet.track_descriptor.uuid] = packet.track_descriptor.name
        elif packet.track_event.type == COUNTER:
            name = names[packet.track_event.track_uuid]
            counters.setdefault(name, []).append(packet.track_event.counter_value)
        else:
            assert packet.track_event.track_uuid in names
            instants.append(packet.track_event.name)
    return {"peaks": {name: max(values) for name, values in counters.items()}, "instants": instants}


folder = Path(sys.argv[1])
print(json.dumps({"tables": tables(folder), "perfetto": perfetto(folder)}))
