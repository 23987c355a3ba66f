//! The same cases on a real Redis and on a server that speaks as SQS does, and what is particular to each.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod redis_faults;
mod redis_only;
mod redis_stand;
mod redis_tls;
mod sqs_only;
mod sqs_stand;
mod stand;

use redis_stand::RedisStand;
use sqs_stand::SqsStand;

/// Each case as a test for each service.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                crate::cases::$case::<crate::RedisStand>().await;
            })*
        }
        mod sqs {
            $(#[tokio::test]
            async fn $case() {
                crate::cases::$case::<crate::SqsStand>().await;
            })*
        }
    };
}

cases![
    what_is_published_is_received_and_settled,
    earlier_queues_come_first,
    a_wait_ends_with_a_message_or_with_its_time,
    what_a_dead_consumer_had_is_delivered_again,
    what_is_extended_is_left_alone,
    duplicates_are_delivered_and_settled_one_by_one,
    what_is_no_wake_up_is_dropped,
    a_great_many_are_all_received_once,
    what_was_lost_can_be_published_again,
    a_service_that_is_down_is_unreachable_until_it_is_back,
    who_stops_waiting_takes_nothing_along,
];
