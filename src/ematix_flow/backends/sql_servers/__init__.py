"""What database servers (Postgres, MySQL) share."""
