"""Gaussian noise on a grid, from a cryptographic generator."""
