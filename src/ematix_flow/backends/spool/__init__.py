"""The spool: received messages on disk until every target holds them, in files that Spark follows."""
