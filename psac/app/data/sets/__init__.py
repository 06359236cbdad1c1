"""The data sets that psac can fetch, one file each: facts, sources, and how to read the files."""
