"""Compiling small C libraries at run time, and the threads that they share with torch."""
