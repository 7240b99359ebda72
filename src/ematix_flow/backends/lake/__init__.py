"""What Delta Lake and Iceberg share: strategies in Spark SQL, one commit per load, a journal next to each
table."""
