"""Windows over event time: aggregates of a batch by Spark, open windows in an embedded database."""
