#!/usr/bin/env python3
"""lossy_link.py NEAR FAR NUMBER PID: a network link that loses and delays packets.

NEAR and FAR are the addresses of its ends. FAR is in the network namespace of process PID. The devices are named
nearNUMBER and farNUMBER, so that there may be several links. Each line on standard input is "LOSS DELAY": percent of
lost packets, and milliseconds that each packet takes. Ends with its standard input.

tc's netem does the same where the kernel has it; TUN devices are in nearly every kernel.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000


def open_tun(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def set_up(prefix, name, own, peer):
    for arguments in [
        ["addr", "add", own, "peer", peer, "dev", name],
        ["link", "set", name, "up", "txqueuelen", "1000"],
    ]:
        subprocess.run([*prefix, "ip", *arguments], check=True)


def main():
    near_address, far_address, number, pid = sys.argv[1:]
    near_name, far_name = "near" + number, "far" + number
    near, far = open_tun(near_name), open_tun(far_name)
    subprocess.run(["ip", "link", "set", far_name, "netns", pid], check=True)
    set_up([], near_name, near_address, far_address)
    set_up(["nsenter", f"--net=/proc/{pid}/ns/net"], far_name, far_address, near_address)
    print("ready", flush=True)

    opposite = {near: far, far: near}
    loss, delay = 0.0, 0.0
    # (time, position, device, packet); the position keeps the order of packets that are due together.
    due, position = [], 0
    command = b""
    while True:
        timeout = max(0.0, due[0][0] - time.monotonic()) if due else None
        readable, _, _ = select.select([0, near, far], [], [], timeout)
        if 0 in readable:
            received = os.read(0, 4096)
            if not received:
                return
            # A line may come in parts.
            *lines, command = (command + received).split(b"\n")
            if lines:
                percent, milliseconds = map(float, lines[-1].split())
                loss, delay = percent / 100, milliseconds / 1000
        for device in readable:
            if device == 0:
                continue
            try:
                packet = os.read(device, 65536)
            except BlockingIOError:
                continue
            if random.random() >= loss:
                position += 1
                heapq.heappush(due, (time.monotonic() + delay, position, opposite[device], packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, device, packet = heapq.heappop(due)
            try:
                os.write(device, packet)
            except OSError:
                # The queue of the device is full, or an end is gone: the packet is lost.
                pass


main()
