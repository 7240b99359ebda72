"""Stores of files on a disk or in a bucket: the operations that tables made of files need."""
