"""Where the library and the program are that this package came with."""

import os


def _folders():
    """The folders that may hold `bin` and `lib`: inside the package (a wheel), or around it (other packages)."""
    here = os.path.dirname(os.path.realpath(__file__))
    return [os.path.join(here, "package"), os.path.dirname(os.path.dirname(here))]


def _find(variable, *parts):
    named = os.environ.get(variable) if variable else None
    places = [named] if named else [os.path.join(folder, *parts) for folder in _folders()]
    for place in places:
        if os.path.isfile(place):
            return os.path.realpath(place)
    raise FileNotFoundError(f"{parts[-1]} is not at {' or '.join(places)}; install the wheel of vramshim")


def preload_path():
    """The path of libvramshim.so, for `LD_PRELOAD`: that of `VRAMSHIM_LIBRARY`, or the one of this package.

    Raises FileNotFoundError if there is none.
    """
    return _find("VRAMSHIM_LIBRARY", "lib", "libvramshim.so")


def program_path():
    """The path of the program `vramshim` of this package. Raises FileNotFoundError if there is none."""
    return _find(None, "bin", "vramshim")
