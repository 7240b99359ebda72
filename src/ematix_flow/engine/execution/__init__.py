"""The executor: carries out a plan's stages on Spark."""
