SELECT payment_id, CAST(replace(amount, ',', '.') AS DECIMAL(12, 2)) AS amount FROM source
