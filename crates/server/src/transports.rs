//! What can carry wake-ups, as far as the API has to know it.

use tenure_core::queue::Transport;

use crate::error::Fault;

/// What SQS allows the name of a queue to have.
const SQS_NAME: usize = 80;

/// The transports that this control plane has a configuration for. The embedded one is always there.
#[derive(Debug, Clone, Default)]
pub struct Transports {
    pub redis: bool,
    /// What stands before the names of its queues.
    pub sqs: Option<String>,
}

impl Transports {
    /// The transport that a queue of this name is to have.
    pub fn of_queue(&self, queue: &str, asked: &str) -> Result<Transport, Fault> {
        let refuse = |message: &str| Err(Fault::invalid("transport", message));
        let Some(transport) = Transport::parse(asked) else {
            return refuse("must be embedded, redis or sqs");
        };
        match (transport, &self.sqs) {
            (Transport::Redis, _) if !self.redis => refuse("Redis is not configured: set redis.url"),
            (Transport::Sqs, None) => refuse("SQS is not configured: set sqs.region"),
            (Transport::Sqs, Some(prefix)) if !fits_sqs(prefix, queue) => {
                let length = SQS_NAME - prefix.len().min(SQS_NAME);
                refuse(&format!(
                    "the name of the queue is not valid for SQS: at most {length} letters, digits, - and _"
                ))
            }
            _ => Ok(transport),
        }
    }
}

fn fits_sqs(prefix: &str, queue: &str) -> bool {
    let sane = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    prefix.len() + queue.len() <= SQS_NAME && queue.chars().all(sane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BadRequest;

    fn message(transports: &Transports, queue: &str, asked: &str) -> String {
        match transports.of_queue(queue, asked) {
            Err(Fault::Request(BadRequest::Invalid { field, message })) if field == "transport" => message,
            other => panic!("{queue} {asked}: {other:?}"),
        }
    }

    #[test]
    fn only_what_is_configured_can_be_asked_for() {
        let none = Transports::default();
        assert_eq!(none.of_queue("q", "embedded"), Ok(Transport::Embedded));
        assert!(message(&none, "q", "redis").contains("redis.url"));
        assert!(message(&none, "q", "sqs").contains("sqs.region"));
        for text in ["", "Redis", "kafka"] {
            assert_eq!(message(&none, "q", text), "must be embedded, redis or sqs");
        }
        let both = Transports { redis: true, sqs: Some(String::new()) };
        assert_eq!(both.of_queue("q", "redis"), Ok(Transport::Redis));
        assert_eq!(both.of_queue("q", "sqs"), Ok(Transport::Sqs));
    }

    #[test]
    fn a_queue_on_sqs_has_a_name_that_sqs_takes() {
        let transports = Transports { redis: true, sqs: Some("prod-".to_owned()) };
        let longest = "q".repeat(75);
        for queue in ["etl", "a_B-9", &longest] {
            assert_eq!(transports.of_queue(queue, "sqs"), Ok(Transport::Sqs), "{queue}");
        }
        for queue in ["etl.daily", "a:b", "größe", "q/1", &format!("{longest}q")] {
            assert!(message(&transports, queue, "sqs").contains("at most 75 letters"), "{queue}");
            assert_eq!(transports.of_queue(queue, "redis"), Ok(Transport::Redis), "{queue}");
        }
    }
}
