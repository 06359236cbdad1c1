"""One record against its bound: every cause that a review found, and many that it did not.

python -m tests.privacy          # measures all of it, writes results/causes/ and docs/causes.md
"""
