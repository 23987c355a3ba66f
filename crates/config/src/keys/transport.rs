use super::Kind::{Bool, Choice, Dsn, Duration, File, Integer, Text};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "transport.default" Choice(&["embedded", "redis", "sqs"]), "embedded", Restart,
        "What carries the wake-ups of a queue that is made from now on. Queues that exist keep theirs; `tenure queue set --transport` changes one.";
    "transport.sweep_interval" Duration, "60s", Restart,
        "How often ready tasks are looked over whose wake-up may be lost, from 1s to 1h. Their wake-ups are sent again.";
    "outbox.max_tries" Integer, "20", Restart,
        "How often the transport may refuse a wake-up before it counts as failed, from 1 to 1000. That the transport is away does not count. `tenure outbox retry` tries again.";

    "redis.url" Dsn, "", Restart,
        "Address of a Redis 6.2 or newer: `rediss://user:password@host:6379/0`, `redis://` without TLS, or `unix:///path`. With it queues can have the transport `redis`.";
    "redis.url_file" File, "", Restart,
        "File that holds `redis.url`.";
    "redis.group" Text, "tenure", Restart,
        "Consumer group in the streams. Control planes and workers that read them have to name the same.";
    "redis.key_prefix" Text, "", Restart,
        "Stands before the name of a queue in the name of its stream. For a Redis that others use too.";
    "redis.tls.ca_file" File, "", Restart,
        "Roots, in PEM, for the certificate of the Redis. Without it those of the system hold.";

    "sqs.region" Text, "", Restart,
        "Region of the SQS queues. With it, or with `sqs.endpoint_url`, queues can have the transport `sqs`. Credentials come from the environment, as AWS tools take them.";
    "sqs.endpoint_url" Text, "", Restart,
        "Address of the SQS service, where it is not that of the region: a VPC endpoint, or a server that speaks like SQS.";
    "sqs.queue_prefix" Text, "", Restart,
        "Stands before the name of a queue in the name of its SQS queue. Together they have at most 80 letters, digits, `-` and `_`.";
    "sqs.create_queues" Bool, "false", Restart,
        "Makes SQS queues that do not exist. Without it they have to be there.";
    "sqs.visibility_timeout" Duration, "60s", Restart,
        "How long a message that was received is hidden from others, in whole seconds from 1s to 12h.";
};
