"""The server of `flow web`: pages, a JSON interface and live events over the module and its run log.

Every value comes from the functions behind the commands. Nothing here imports Spark.
"""
