#!/usr/bin/env python3
"""The kernel's side of the fake Wintun: a TUN of this network namespace behind a UDP port on loopback.

Usage: kernel.py NAME PORT. Writes a line when both are open.
"""
import fcntl
import os
import selectors
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000

name, port = sys.argv[1], int(sys.argv[2])
tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
rings = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
rings.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
rings.bind(("127.0.0.1", port))
rings.setblocking(False)
print("ready", flush=True)

adapter = None


def from_tun():
    packet = os.read(tun, 65536)
    if adapter:
        rings.sendto(packet, adapter)


def from_adapter():
    global adapter
    packet, adapter = rings.recvfrom(65536)
    if packet:
        os.write(tun, packet)


waiting = selectors.DefaultSelector()
waiting.register(tun, selectors.EVENT_READ, from_tun)
waiting.register(rings, selectors.EVENT_READ, from_adapter)
while True:
    for key, _ in waiting.select():
        try:
            key.data()
        except (BlockingIOError, ConnectionRefusedError):
            pass
        except OSError as error:
            print("kernel.py:", error, flush=True)
