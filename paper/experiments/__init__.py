"""The DP-PSAC paper (arXiv:2212.00328) repeated: its figures, tables and claims."""
