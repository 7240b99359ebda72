"""The server of `flow mcp`: what `flow web` shows, as tools of the Model Context Protocol for assistants.

The tools call the functions behind the endpoints of `flow web`. Nothing here imports Spark.
"""
