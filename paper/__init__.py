"""The DP-PSAC paper, reproduced and questioned: its theory, figures and tables, made anew.

It uses psac as any user does, and is not part of the library.
"""
