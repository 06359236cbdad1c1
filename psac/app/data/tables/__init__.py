"""Your own tables: a file or a frame with a column of labels becomes records.

loading          from_table: the way in
reader           CSV, TSV, Parquet and frames, as one kind of table
cells            one column of a table: its different values, and who has which
schema           what you state: kinds, ranges, categories, missing values
columns          from cells to features
resolve          every column is stated, released with noise, or refused
private_release  ranges and categories with noise, for a share of the budget
guess            what a column looks like
schema_text      a schema as TOML, to be edited
"""
