"""`python -m vramshim`, and the command `vramshim` of the wheel: becomes the program."""

import os
import sys

from .installed import program_path


def main():
    try:
        program = program_path()
    except FileNotFoundError as missing:
        sys.exit(f"vramshim: {missing}")
    os.execv(program, ["vramshim", *sys.argv[1:]])


if __name__ == "__main__":
    main()
