use super::Kind::{Bool, Choice, Dsn, Duration, File, Integer, Text};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "transport.default" Choice(&["embedded", "redis", "sqs"]), "embedded", Restart,
        "Transport of queues created from now on. Existing queues keep theirs; `tenure queue set --transport` changes one.";
    "transport.sweep_interval" Duration, "60s", Restart,
        "How often lost wake-ups of ready tasks are found and published again, from 1s to 1h.";
    "outbox.max_tries" Integer, "20", Restart,
        "How often the transport may refuse a wake-up before it has failed, from 1 to 1000. An unreachable transport does not count. `tenure outbox retry` tries again.";

    "redis.url" Dsn, "", Restart,
        "Address of Redis 6.2 or newer: `rediss://user:password@host:6379/0`, `redis://` without TLS, or `unix:///path`. Required for queues with the transport `redis`.";
    "redis.url_file" File, "", Restart,
        "File with `redis.url`.";
    "redis.group" Text, "tenure", Restart,
        "Consumer group of the streams. Must be the same for control planes and workers.";
    "redis.key_prefix" Text, "", Restart,
        "Prefix of stream names, for a Redis that is shared with other programs.";
    "redis.tls.ca_file" File, "", Restart,
        "CA certificates (PEM) for verifying Redis. Default: those of the system.";

    "sqs.region" Text, "", Restart,
        "Region of the SQS queues. This or `sqs.endpoint_url` is required for queues with the transport `sqs`. Credentials come from the environment, as for the AWS CLI.";
    "sqs.endpoint_url" Text, "", Restart,
        "Address of the SQS service, if not that of the region: a VPC endpoint, or a compatible server.";
    "sqs.queue_prefix" Text, "", Restart,
        "Prefix of SQS queue names. Prefix and name together may have at most 80 letters, digits, `-` and `_`.";
    "sqs.create_queues" Bool, "false", Restart,
        "Creates missing SQS queues. If false, they must exist.";
    "sqs.visibility_timeout" Duration, "60s", Restart,
        "How long a received message is hidden from other workers, in whole seconds from 1s to 12h.";
};
