//! What is particular to SQS.

use std::slice::from_ref;
use tenure_transport::sqs::{SqsConfig, SqsTransport};
use tenure_transport::{Refused, Transport, TransportError, Upkeep, WakeUp};

use crate::sqs_stand::SqsStand;
use crate::stand::{LONG, SOON, Stand, publish, queue, task, wake};

#[tokio::test]
async fn a_message_says_which_task_and_nothing_else() {
    let stand = SqsStand::start().await;
    let transport = stand.transport(true, LONG);
    publish(&transport, &[wake("etl", 1)]).await;
    let got = stand
        .client()
        .receive_message()
        .queue_url(stand.url("etl").await)
        .message_attribute_names("All")
        .send()
        .await
        .unwrap();
    let message = &got.messages()[0];
    assert_eq!(message.body(), Some(format!(r#"{{"task_id":"{}"}}"#, task(1)).as_str()));
    let attributes = message.message_attributes().unwrap();
    assert_eq!(attributes.len(), 1);
    assert_eq!(attributes["enqueue_id"].string_value(), Some("1000000000001"));
    assert_eq!(attributes["enqueue_id"].data_type(), "String");
    // One that somebody else sent has no number.
    let body = format!(r#"{{"task_id":"{}"}}"#, task(2));
    stand.client().send_message().queue_url(stand.url("etl").await).message_body(body).send().await.unwrap();
    let found = transport.receive(&[queue("etl")], 1, SOON).await.unwrap();
    assert_eq!((&found[0].task, found[0].enqueue), (&task(2), None));
}

#[tokio::test]
async fn queues_are_made_only_when_asked_to_and_without_a_redrive_policy() {
    let stand = SqsStand::start().await;
    let careful = stand.transport(false, LONG);
    let q = queue("etl");
    let refused = |answer: Result<(), TransportError>| {
        assert_eq!(answer.unwrap_err().to_string(), "sqs refused: the queue t-etl does not exist");
    };
    refused(careful.prepare(&q).await);
    refused(careful.receive(from_ref(&q), 1, SOON).await.map(drop));
    let published = careful.publish(&[wake("etl", 1)]).await.unwrap();
    assert_eq!(published, [Err(Refused::ForItself("SQS refused: the queue t-etl does not exist".to_owned()))]);

    stand.transport(true, LONG).prepare(&q).await.unwrap();
    publish(&careful, &[wake("etl", 1)]).await;
    let names = aws_sdk_sqs::types::QueueAttributeName::All;
    let url = stand.url("etl").await;
    let made = stand.client().get_queue_attributes().queue_url(url).attribute_names(names).send().await.unwrap();
    let made = made.attributes().unwrap();
    let attribute = |name: &str| made.get(&name.into()).map(String::as_str);
    assert_eq!(attribute("RedrivePolicy"), None);
    assert_eq!(attribute("MessageRetentionPeriod"), Some("1209600"));
    assert_eq!(attribute("VisibilityTimeout"), Some("3600"));
}

#[tokio::test]
async fn names_that_sqs_does_not_take_are_refused_alone() {
    let stand = SqsStand::start().await;
    let transport = stand.transport(true, LONG);
    let bad = WakeUp { queue: queue("etl.low"), ..wake("", 1) };
    let published = transport.publish(&[bad, wake("etl", 2)]).await.unwrap();
    let reason = published[0].as_ref().unwrap_err().to_string();
    assert!(reason.contains(r#""t-etl.low" is not a valid queue name"#), "{reason}");
    assert!(published[1].is_ok());
    let answer = transport.receive(&[queue("etl.low")], 1, SOON).await;
    assert!(matches!(answer, Err(TransportError::Refused { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_and_nothing_secret_is_printed() {
    let stand = SqsStand::start().await;
    let transport = stand.transport(true, LONG);
    assert!(!format!("{transport:?}").contains("hunter2"));
    let config = SqsConfig { visibility: std::time::Duration::ZERO, ..SqsConfig::default() };
    SqsTransport::from_client(&stand.client(), config).unwrap_err();
}
