"""Tables and changes of an archive as Arrow batches; needs the extra ``parquet`` (pyarrow)."""
