"""What the targets that Spark SQL writes share."""
