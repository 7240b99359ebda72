"""One folder a system; none imports another. ``base`` holds the contracts, ``registry`` the list."""
