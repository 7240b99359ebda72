"""AWS Kinesis Data Streams: streams that are followed shard by shard, and sent messages to."""
