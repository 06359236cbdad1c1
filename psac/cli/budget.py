"""`psac calibrate` and `psac epsilon`: the noise for a budget, and back."""

from __future__ import annotations

from typing import Annotated

import typer

import psac
from psac.cli.console import console


def calibrate(
    epsilon: float,
    delta: Annotated[float, typer.Option()],
    sampling_rate: Annotated[float, typer.Option(help="Expected batch size / records.")],
    steps: Annotated[int, typer.Option()],
) -> None:
    """The noise multiplier for a budget, under Poisson sampling."""
    noise = psac.calibrate(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
    console.print(f"{noise:.6g}")


def epsilon(
    noise_multiplier: float,
    delta: Annotated[float, typer.Option()],
    sampling_rate: Annotated[float, typer.Option(help="Expected batch size / records.")],
    steps: Annotated[int, typer.Option()],
) -> None:
    """What training costs, under Poisson sampling."""
    found = psac.epsilon(
        noise_multiplier=noise_multiplier, delta=delta, sampling_rate=sampling_rate, steps=steps
    )
    console.print(f"{found:.6g}")
