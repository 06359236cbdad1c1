"""Compiled inner loops, with torch operations in their place where there is no compiler."""
