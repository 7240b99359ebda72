"""Java for Spark: which one runs, its connector jars, its class archive, its process."""
