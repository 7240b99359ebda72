"""What all SQL databases share: the load's transaction, table changes, control tables, SQL sessions."""
