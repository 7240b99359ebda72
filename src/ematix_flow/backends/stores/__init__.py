"""Where files live, on a disk or in a bucket: the few operations that tables made of files need."""
