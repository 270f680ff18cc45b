"""Makes other traces from recorded ones: sizes with noise, two traces played at once, or a small file.

usage: variants.py noise IN.csv.gz OUT.csv.gz [--percent 5] [--times 6] [--seed 1]
       variants.py mix ONE.csv.gz OTHER.csv.gz OUT.csv.gz [--seed 1]
       variants.py plain IN.csv.gz OUT.csv.gz

noise: the trace is played several times, each with other noise in each size; everything is freed in between.
mix:   events of the two traces alternate at random, in proportion to how many each has. Blocks that one of them holds
       at its end stay live.
plain: pointers and streams become small numbers, and all times 0, so that the file takes half the bytes.
"""

import argparse
import gzip
import random


def read(path):
    """The events of a trace as (allocates, pointer, size, stream)."""
    with gzip.open(path, "rt") as file:
        assert next(file).strip() == "Thread,Time,Action,Pointer,Size,Stream", path
        for line in file:
            _, _, action, pointer, size, stream = line.strip().split(",")
            yield action == "allocate", int(pointer, 16), int(size), int(stream)


def write(path, events, length=1):
    """Each event takes so many microseconds. With mtime=0 the same events make the same bytes."""
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write(b"Thread,Time,Action,Pointer,Size,Stream\n")
        for number, (allocates, pointer, size, stream) in enumerate(events):
            seconds, micros = divmod(number * length, 1_000_000)
            word = "allocate" if allocates else "free"
            file.write(f"0,00:00:{seconds:02}.{micros:06},{word},{pointer:#x},{size},{stream}\n".encode())


def noise(path, percent, times):
    events = list(read(path))
    for _ in range(times):
        live = {}
        for allocates, pointer, size, stream in events:
            if allocates:
                size = max(1, size * random.randint(10_000 - 100 * percent, 10_000 + 100 * percent) // 10_000)
                live[pointer] = size, stream
                yield True, pointer, size, stream
            elif pointer in live:
                yield False, pointer, *live.pop(pointer)
        for pointer, (size, stream) in live.items():
            yield False, pointer, size, stream


def mix(*paths):
    tapes = [list(read(path)) for path in paths]
    order = [number for number, tape in enumerate(tapes) for _ in tape]
    random.shuffle(order)
    tapes = [iter(tape) for tape in tapes]
    for number in order:
        allocates, pointer, size, stream = next(tapes[number])
        # No address has bit 62, so that the traces do not share pointers.
        yield allocates, pointer | number << 62, size, stream


def plain(path):
    numbers, streams, count = {}, {0: 0}, 0
    for allocates, pointer, size, stream in read(path):
        if allocates:
            count += 1
            numbers[pointer] = count
        yield allocates, numbers[pointer], size, streams.setdefault(stream, len(streams))


def main():
    parser = argparse.ArgumentParser(prog="variants.py", description=__doc__.split("\n\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    noisy, mixed, smaller = (kinds.add_parser(name) for name in ("noise", "mix", "plain"))
    noisy.add_argument("input")
    noisy.add_argument("--percent", type=int, default=5)
    noisy.add_argument("--times", type=int, default=6)
    mixed.add_argument("inputs", nargs=2)
    smaller.add_argument("input")
    for kind in (noisy, mixed, smaller):
        kind.add_argument("output")
    for kind in (noisy, mixed):
        kind.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(getattr(options, "seed", None))
    if options.kind == "noise":
        write(options.output, noise(options.input, options.percent, options.times))
    elif options.kind == "plain":
        write(options.output, plain(options.input), length=0)
    else:
        write(options.output, mix(*options.inputs))


if __name__ == "__main__":
    main()
