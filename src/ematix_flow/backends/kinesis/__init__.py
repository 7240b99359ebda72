"""AWS Kinesis Data Streams: reads streams shard by shard, and sends messages to them."""
