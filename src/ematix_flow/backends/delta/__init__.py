"""Delta Lake: tables as folders of Parquet with a log of commits, written by Spark."""
