"""AWS for S3, Kinesis, the Glue schema registry and Secrets Manager: sessions of boto3, and its errors."""
