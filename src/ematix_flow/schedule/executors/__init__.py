"""Where a claimed slot runs: a process of this machine, a job of a cluster, a function in a cloud."""
