//! Queries of a user, against a server that answers as each test says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tenure_client::query::{QueryAnswer, QueryRequest};
use tenure_client::{Client, ClientError, ExportFormat};

type Scripted = VecDeque<(u16, Vec<u8>)>;
/// Method and path, the API key, the body.
type Asked = (String, Option<String>, Value);

#[derive(Clone)]
struct Plane {
    url: String,
    answers: Arc<Mutex<Scripted>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Plane {
    async fn start(answers: impl IntoIterator<Item = (u16, Vec<u8>)>) -> Self {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let plane = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            asked: Arc::default(),
        };
        let app = Router::new().fallback(answer).with_state(plane.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        plane
    }

    fn client(&self) -> Client {
        Client::builder(&self.url).api_key("key").build().unwrap()
    }

    fn asked(&self) -> Vec<(String, Option<String>, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(plane): State<Plane>, request: Request) -> Response {
    let key = request.headers().get("x-api-key").map(|key| key.to_str().unwrap().to_owned());
    let what = format!("{} {}", request.method(), request.uri());
    let body: Bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    plane.asked.lock().unwrap().push((what, key, serde_json::from_slice(&body).unwrap_or_default()));
    let (status, body) = plane.answers.lock().unwrap().pop_front().unwrap();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

fn rows() -> Vec<u8> {
    json!({"mode": "inline", "delivery": "inline", "query_id": "q", "row_count": 1, "truncated": true, "duration_ms": 1,
        "columns": [{"name": "n", "type": "int64"}], "rows": [[7]]})
    .to_string()
    .into_bytes()
}

fn export(url: Option<&str>) -> Vec<u8> {
    json!({"mode": "export", "delivery": "export", "query_id": "q", "output_location": "s3://b/p/", "format": "csv",
        "row_count": 1, "bytes": 6, "expires_at": "2099-01-01T00:00:00Z", "result_url": url})
    .to_string()
    .into_bytes()
}

fn refusal(word: &str) -> Vec<u8> {
    json!({"code": "UNAVAILABLE", "error": word, "message": "as told", "request_id": "req_1"}).to_string().into_bytes()
}

fn request(sql: &str) -> QueryRequest {
    QueryRequest { sql: sql.into(), ..QueryRequest::default() }
}

#[tokio::test]
async fn rows_come_with_their_columns() {
    let plane = Plane::start([(200, rows())]).await;
    let asked =
        QueryRequest { limit: Some(1), datasets: Some(vec!["alerts".into()]), ..request("SELECT n FROM alerts") };
    let rows = plane.client().query_rows(&asked).await.unwrap();
    assert_eq!((rows.columns[0].kind.as_str(), rows.truncated), ("int64", true));
    assert_eq!(rows.decode::<(i64,)>().unwrap(), [(7,)]);
    let body = json!({"sql": "SELECT n FROM alerts", "limit": 1, "datasets": ["alerts"]});
    assert_eq!(plane.asked(), [("POST /api/v1/query".to_owned(), Some("key".to_owned()), body)]);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_another_failure_is_not() {
    let plane =
        Plane::start([(503, refusal("query_busy")), (200, rows()), (503, refusal("object_store_unavailable"))]).await;
    let client = plane.client();
    client.query_rows(&request("SELECT 1")).await.unwrap();
    let error = client.query_rows(&request("SELECT 1")).await.unwrap_err();
    assert_eq!((error.word(), plane.asked().len()), (Some("object_store_unavailable"), 3));
}

#[tokio::test]
async fn a_whole_result_is_exported_and_read() {
    let plane = Plane::start([
        (200, export(Some("/api/v1/query/q/result"))),
        (200, b"n\r\n7\r\n".to_vec()),
        (200, b"n\r\n".to_vec()),
        (404, refusal("result_not_found")),
    ])
    .await;
    let client = plane.client();
    let made = client.export_query(&request("SELECT n FROM alerts"), ExportFormat::Csv).await.unwrap();
    let mut stream = client.download_result(&made).await.unwrap();
    let mut content = Vec::new();
    while let Some(piece) = stream.next().await {
        content.extend_from_slice(&piece.unwrap());
    }
    assert_eq!((content.as_slice(), stream.size()), (&b"n\r\n7\r\n"[..], 6));
    // Less than was promised is not a result.
    let mut short = client.download_result(&made).await.unwrap();
    assert_eq!(short.next().await.unwrap().unwrap().len(), 3);
    assert!(matches!(short.next().await, Some(Err(ClientError::Network { .. }))));
    assert!(short.next().await.is_none());
    assert_eq!(client.download_result(&made).await.unwrap_err().status(), Some(404));
    let asked = plane.asked();
    assert_eq!(asked[0].2, json!({"sql": "SELECT n FROM alerts", "format": "csv", "export": true}));
    assert_eq!((asked[1].0.as_str(), asked[1].1.as_deref()), ("GET /api/v1/query/q/result", Some("key")));
}

#[tokio::test]
async fn the_key_is_sent_to_the_control_plane_alone() {
    let other = Plane::start([(200, b"n\r\n7\r\n".to_vec())]).await;
    let plane = Plane::start([(200, export(Some(&format!("{}/b/q?signature=x", other.url))))]).await;
    let client = plane.client();
    let made = client.export_query(&request("SELECT 1"), ExportFormat::Csv).await.unwrap();
    client.download_result(&made).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(other.asked(), [("GET /b/q?signature=x".to_owned(), None, Value::Null)]);
}

#[tokio::test]
async fn an_answer_of_another_kind_is_an_error() {
    let plane = Plane::start([(200, export(None)), (200, rows()), (200, b"{}".to_vec()), (200, export(None))]).await;
    let client = plane.client();
    assert!(matches!(client.query_rows(&request("SELECT 1")).await, Err(ClientError::Setup(_))));
    assert!(matches!(client.export_query(&request("SELECT 1"), ExportFormat::Csv).await, Err(ClientError::Setup(_))));
    assert!(matches!(client.query(&request("SELECT 1")).await, Err(ClientError::Decode { .. })));
    let Ok(QueryAnswer::Export(made)) = client.query(&request("SELECT 1")).await else { panic!("no export") };
    assert!(client.download_result(&made).await.unwrap_err().to_string().contains("output_location"));
}
