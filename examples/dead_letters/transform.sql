SELECT payment_id, CAST(amount AS DECIMAL(12, 2)) AS amount FROM source
