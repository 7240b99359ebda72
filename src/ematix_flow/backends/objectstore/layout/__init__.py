"""Where the files of a table are: paths, partition folders, file names."""
