"""A TCPStore of the legacy backend gets a message with a damaged length, 962 GB. The job must go on.

The message is what `TCPStore.cpp` and `Utils.hpp` (`recvString`) of PyTorch read: a query that validates with a magic number,
then the query SET and the length of its key.
"""

import datetime
import socket
import struct

import torch.distributed as dist

VALIDATE, SET = 0, 1
MAGIC = 0x3C85F7CE
LENGTH = 0xE0060B0000

store = dist.TCPStore(
    "127.0.0.1", 0, world_size=1, is_master=True, use_libuv=False, timeout=datetime.timedelta(seconds=30)
)
store.set("before", "1")
with socket.create_connection(("127.0.0.1", store.port), timeout=20) as peer:
    peer.sendall(struct.pack("<BIBQ", VALIDATE, MAGIC, SET, LENGTH))
    # The store hangs up on who sends this. An unguarded one would wait for 962 GB.
    try:
        answer = peer.recv(1)
    except ConnectionResetError:
        answer = b""
    print("closed" if answer == b"" else "open")
store.set("after", "2")
print("survived", store.get("before").decode(), store.get("after").decode())
