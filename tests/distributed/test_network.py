"""Two workers in network namespaces of their own: a slow network, and one that is cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import psac
from tests.distributed.network_run import STEPS
from tests.private_runs import loss, private_run, weights

SPACES = ("psac-worker-0", "psac-worker-1")
COMMAND = [sys.executable, "-m", "tests.distributed.network_run"]
PATIENCE = 300.0  # seconds


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def slow_down(space: str, device: str) -> None:
    """By delay and loss; where the kernel does not have them, by a low rate, or not at all."""
    for way in ("netem delay 10ms loss 1%", "tbf rate 2mbit burst 16kbit latency 400ms"):
        words = ["tc", "qdisc", "add", "dev", device, "root", *way.split()]
        done = subprocess.run(["ip", "netns", "exec", space, *words], capture_output=True)
        if done.returncode == 0:
            print(f"{device}: {way}")
            return


@pytest.fixture
def network() -> Iterator[None]:
    """Two namespaces with a slow cable between them."""
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid():
        pytest.skip("network namespaces need ip, tc and root")
    try:
        for space in SPACES:
            ip("netns", "add", space)
        ip("link", "add", "veth0", "netns", SPACES[0], "type", "veth", "peer", "name", "veth1")
        ip("link", "set", "veth1", "netns", SPACES[1])
        for k, space in enumerate(SPACES):
            ip("-n", space, "addr", "add", f"10.77.0.{k + 1}/24", "dev", f"veth{k}")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", f"veth{k}", "up")
            slow_down(space, f"veth{k}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be had here: {error.stderr.decode()}")
    else:
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
def test_a_slow_network_changes_nothing_and_a_cut_one_ends_both(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", space, *COMMAND, str(k), str(tmp_path)],
            env=os.environ | {"GLOO_SOCKET_IFNAME": f"veth{k}"},
        )
        for k, space in enumerate(SPACES)
    ]
    try:
        end = time.monotonic() + PATIENCE
        while len(list(tmp_path.glob("*.pt"))) < 2 and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(1)
        ip("-n", SPACES[1], "link", "set", "veth1", "down")
        for process in processes:
            process.wait(PATIENCE)
    finally:
        for process in processes:
            process.kill()
    with pytest.warns(psac.InsecureNoiseWarning):
        private = private_run(noise_multiplier=1.0, epochs=1000)
    while private.steps_taken < STEPS:
        for batch in private.loader:
            private.step(loss, batch)
            if private.steps_taken == STEPS:
                break
    for k in range(2):
        found, seconds = torch.load(tmp_path / f"{k}.pt")
        torch.testing.assert_close(found, weights(private.model), rtol=1e-5, atol=1e-6)
        text = (tmp_path / f"{k}.txt").read_text()
        print(f"worker {k}: {seconds / STEPS:.2f} seconds a step; {text}")
        assert "has ended or does not answer" in text
        assert "steps were spent, epsilon" in text
