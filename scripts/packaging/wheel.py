"""Writes a wheel: wheel.py TREE VERSION PLATFORM OUT

TREE has bin, lib, simgpu, assumptions, include, share/man and python. In the wheel it is the folder `package` of the Python
package `vramshim`, whose modules are those of TREE/python/vramshim. The man pages go to the environment's share/man, and the
wheel's page is wheel.md. The format is that of the binary distribution format of
packaging.python.org. The same input gives the same bytes: files have the time SOURCE_DATE_EPOCH.
"""

import base64
import csv
import hashlib
import io
import os
import sys
import time
import zipfile

METADATA = """Metadata-Version: 2.1
Name: vramshim
Version: {version}
Summary: Accounts for every byte of GPU memory that a CUDA job holds
License: Apache-2.0
Requires-Python: >=3.8
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Environment :: GPU :: NVIDIA CUDA
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """Wheel-Version: 1.0
Generator: vramshim scripts/package
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""

ENTRY_POINTS = """[console_scripts]
vramshim = vramshim.__main__:main

[lightning.pytorch.callbacks_factory]
vramshim = vramshim.loggers:epochs_of_lightning

[pytorch_lightning.callbacks_factory]
vramshim = vramshim.loggers:epochs_of_pytorch_lightning
"""


def files_of(tree):
    """Every file below a folder, as (path, path below the folder), sorted."""
    found = []
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in names:
            path = os.path.join(folder, name)
            found.append((path, os.path.relpath(path, tree)))
    return sorted(found, key=lambda pair: pair[1])


def main(tree, version, platform, out):
    when = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    name = f"vramshim-{version}-py3-none-{platform}.whl"
    info = f"vramshim-{version}.dist-info"
    record = io.StringIO()
    lines = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(os.path.join(out, name), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def add(at, data, mode=0o644):
            entry = zipfile.ZipInfo(at, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.writerow([at, f"sha256={digest}", len(data)])

        def read(path):
            with open(path, "rb") as file:
                return file.read()

        for path, below in files_of(os.path.join(tree, "python", "vramshim")):
            add(f"vramshim/{below}", read(path))
        for path, below in files_of(tree):
            folder = f"vramshim-{version}.data/data" if below.startswith("share/") else "vramshim/package"
            add(f"{folder}/{below}", read(path), os.stat(path).st_mode & 0o777)
        readme = read(os.path.join(os.path.dirname(__file__), "wheel.md")).decode()
        add(f"{info}/METADATA", METADATA.format(version=version, readme=readme).encode())
        add(f"{info}/WHEEL", WHEEL.format(platform=platform).encode())
        add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
        add(f"{info}/licenses/LICENSE", read("LICENSE"))
        lines.writerow([f"{info}/RECORD", "", ""])
        entry = zipfile.ZipInfo(f"{info}/RECORD", when)
        entry.external_attr = 0o100644 << 16
        wheel.writestr(entry, record.getvalue())


main(*sys.argv[1:])
