"""Ranks that wait for each other after each step, through a socket of rank 0."""

import os
import socket
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], 29511  # below the ports that the system gives to connections


def receive(peer):
    """Waits for a peer. Like a collective, it does not end at once when the peer has ended."""
    if not peer.recv(1):
        time.sleep(60)
        raise ConnectionError("a rank has ended")


def wait_for_others(peers):
    for peer in peers:
        receive(peer)
    for peer in peers:
        peer.send(b".")


if rank == 0:
    with socket.create_server(("", address[1])) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
else:
    peers = []
    while not peers:
        try:
            peers = [socket.create_connection(address, 5)]
            peers[0].settimeout(None)
        except OSError:
            time.sleep(0.1)

print(f"rank {rank} of {world}: training", flush=True)
for step in range(int(os.environ.get("STEPS", "10000"))):
    if rank == 0:
        wait_for_others(peers)
    else:
        peers[0].send(b".")
        receive(peers[0])
    print(f"step {step}", flush=True)
    time.sleep(0.1)
