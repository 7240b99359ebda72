"""PostgreSQL as a source and a target: psycopg for control, ADBC with COPY BINARY for rows."""
