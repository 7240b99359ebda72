"""What the state stores in SQL databases share."""
