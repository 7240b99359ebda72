"""One folder a system, and rooms for what several systems share. No system imports another.

``base`` holds the contracts, ``registry`` lists the systems.
"""
