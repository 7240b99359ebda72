"""What `writing` and `storage` both know of a table: its storage, the state of a version, and staging."""
