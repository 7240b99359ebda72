"""Slots: which scheduled run is due, claimed or done, and which scheduler leads."""
