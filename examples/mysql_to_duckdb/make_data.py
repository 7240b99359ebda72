"""Three orders in the MySQL or MariaDB database, one of them too new to be read yet."""

from pipelines import shop

from ematix_flow import connect

database = connect(shop)
database.execute(
    "CREATE TABLE orders (order_id BIGINT, product VARCHAR(100), amount DECIMAL(12,2),"
    " changed_at DATETIME(6))"
)
database.execute(
    "INSERT INTO orders VALUES (1, 'cup', 7.50, '2026-01-01 08:00:00'),"
    " (2, 'teapot', 24.90, '2026-01-01 09:00:00'),"
    " (3, 'kettle', 39.00, utc_timestamp(6))"
)
