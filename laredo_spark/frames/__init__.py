"""Tables and changes as DataFrames."""
