"""What Delta Lake and Iceberg share: strategies on Spark SQL, one commit a load, a journal beside a table."""
