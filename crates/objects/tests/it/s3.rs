//! What only S3 has: addresses for others, and a server that goes away. moto stands in for S3.

use std::time::Duration;

use tenure_core::objects::Prefix;
use tenure_objects::{Limits, ObjectError};

use crate::stand::{At, Kind, Stand, at, output};

#[tokio::test]
async fn whoever_has_a_presigned_address_reads_the_object() {
    let stand = Stand::new(Kind::S3).await;
    let location = stand.staging(&output(1, 1));
    stand.put(&location, "a b.parquet", "data").await;
    let url = stand.objects.presigned_get(&location, "a b.parquet", Duration::from_secs(3600)).await.unwrap().unwrap();
    assert!(url.contains("X-Amz-Signature=") && url.contains("X-Amz-Expires=3600"), "{url}");
    assert_eq!(reqwest::get(url).await.unwrap().text().await.unwrap(), "data");
}

#[tokio::test]
async fn a_bucket_that_is_not_configured_is_not_reached() {
    let stand = Stand::new(Kind::S3).await;
    let other = Prefix::parse("s3://other-bucket/x/", false).unwrap();
    assert!(matches!(stand.objects.list(&other).await, Err(ObjectError::NotGranted)));
    let refused = stand.objects.presigned_get(&other, "x", Duration::from_secs(1)).await;
    assert!(matches!(refused, Err(ObjectError::NotGranted)));
}

#[tokio::test]
async fn a_server_that_is_away_is_named_and_the_next_call_succeeds() {
    let mut stand = Stand::new(Kind::S3).await;
    let output = output(1, 1);
    let location = stand.staging(&output);
    let At::Moto(moto) = &mut stand.place else { panic!("not moto") };
    // Nobody answers: a few repeats, then the error.
    let limits = Limits { retries: 1, ..crate::stand::limits() };
    let objects = Stand::s3(moto, limits).open().unwrap();
    moto.kill();
    let away = objects.finished(&at(&output, &location)).await.unwrap_err();
    assert_eq!((away.code(), away.status(), away.is_transient()), ("object_store_unavailable", 503, true));
    assert!(!away.to_string().contains("127.0.0.1"), "{away}");
    moto.restart().await;
    // It has forgotten its buckets, which says nothing about the output.
    let gone = objects.finished(&at(&output, &location)).await.unwrap_err();
    assert_eq!(gone.code(), "object_store_unavailable", "{gone:?}");
    assert!(objects.check().await.is_err());
    assert!(
        reqwest::Client::new().put(format!("{}/tenure-test", moto.url())).send().await.unwrap().status().is_success()
    );
    stand.put(&location, "_SUCCESS", "").await;
    assert!(stand.objects.finished(&at(&output, &location)).await.is_ok());
}

/// A server that accepts connections and never answers.
#[tokio::test]
async fn a_call_ends_in_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits =
        Limits { request: Duration::from_secs(600), call: Duration::from_millis(200), ..crate::stand::limits() };
    let place = tenure_objects::Place::S3 {
        root: Prefix::parse("s3://tenure-test/x/", false).unwrap(),
        endpoint_url: Some(format!("http://{}", silent.local_addr().unwrap())),
        region: Some("eu-central-1".into()),
        path_style: true,
    };
    let credentials = tenure_objects::Credentials { access_key_id: "any".into(), secret_access_key: "hunter2".into() };
    assert!(!format!("{credentials:?}").contains("hunter2"));
    let settings =
        tenure_objects::Settings { limits, credentials: Some(credentials), ..tenure_objects::Settings::new(place) };
    let objects = settings.open().unwrap();
    let location = objects.layout().staging(&output(1, 1)).unwrap();
    let late = objects.finished(&at(&output(1, 1), &location)).await.unwrap_err();
    assert_eq!(late.code(), "object_store_unavailable");
    drop(silent);
}
