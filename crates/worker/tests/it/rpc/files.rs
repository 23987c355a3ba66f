//! Files in envelopes, and as raw bodies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::kit::*;

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

async fn with_sandbox() -> Worker {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    worker
}

#[tokio::test]
async fn every_file_call_works_on_the_sandbox() {
    let worker = with_sandbox().await;
    let s = |extra: serde_json::Value| {
        let mut params = json!({"sandbox_id": "sb-1", "provider": "mock"});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        params
    };
    let path = "/workspace/a/b.txt";
    let written = worker.ok("worker.file_write", s(json!({"path": path, "content": STANDARD.encode("hello")}))).await;
    assert!(written.is_null(), "no result");
    let read = worker.ok("worker.file_read", s(json!({"path": path}))).await;
    assert_eq!(read, json!({"sandbox_id": "sb-1", "content": "aGVsbG8="}));
    let stat = worker.ok("worker.file_stat", s(json!({"path": path}))).await;
    let file = &stat["file"];
    assert_eq!((&file["path"], &file["size"], &file["is_dir"]), (&json!(path), &json!(5), &json!(false)));
    assert_eq!(file["mode"], "0644");
    let time = file["mod_time"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    worker.ok("worker.file_chmod", s(json!({"path": path, "mode": "755"}))).await;
    worker.ok("worker.file_move", s(json!({"old_path": path, "new_path": "/workspace/a/c.txt"}))).await;
    let list = worker.ok("worker.file_list", s(json!({"path": "/workspace/a"}))).await;
    assert_eq!(list["files"].as_array().unwrap().len(), 1);
    assert_eq!((&list["files"][0]["path"], &list["files"][0]["mode"]), (&json!("/workspace/a/c.txt"), &json!("0755")));
    let glob = worker.ok("worker.file_glob", s(json!({"pattern": "/workspace/**/*.txt"}))).await;
    assert_eq!(glob["matches"], json!(["/workspace/a/c.txt"]));
    worker.ok("worker.file_delete", s(json!({"path": "/workspace/a", "recursive": true}))).await;
    let glob = worker.ok("worker.file_glob", s(json!({"pattern": "/workspace/*"}))).await;
    assert_eq!(glob["matches"], json!([]), "empty, not absent");
    let (status, body) = worker.call("worker.file_read", s(json!({"path": path}))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
    let (status, body) = worker.call("worker.file_read", s(json!({"path": "../../../etc/shadow"}))).await;
    assert!(status.is_client_error() && body["result"].is_null(), "{status} {body}");
}

#[tokio::test]
async fn a_file_of_64_mib_goes_both_ways_in_envelopes() {
    let worker = with_sandbox().await;
    let content = bytes(64 << 20);
    let path = "/workspace/large";
    let params = json!({"sandbox_id": "sb-1", "path": path, "content": STANDARD.encode(&content)});
    worker.ok("worker.file_write", params).await;
    let read = worker.ok("worker.file_read", json!({"sandbox_id": "sb-1", "path": path})).await;
    assert!(STANDARD.decode(read["content"].as_str().unwrap()).unwrap() == content);

    let params = json!({"sandbox_id": "sb-1", "path": path, "content": STANDARD.encode(bytes((64 << 20) + 1))});
    let (status, body) = worker.call("worker.file_write", params).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (413, Some("invalid")), "{body}");
    worker.exec("sb-1", "echo x >> large").await;
    let (status, body) = worker.call("worker.file_read", json!({"sandbox_id": "sb-1", "path": path})).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (413, Some("invalid")), "{body}");
}

#[tokio::test]
async fn a_larger_file_is_streamed_both_ways() {
    let worker = with_sandbox().await;
    let runtime = worker.ok("worker.status", json!({"sandbox_id": "sb-1"})).await;
    assert_eq!(runtime["state"], "running");
    let part = bytes(1 << 20);
    let count = 160_usize;
    let mut hasher = Sha256::new();
    (0..count).for_each(|_| hasher.update(&part));
    let expected: [u8; 32] = hasher.finalize().into();
    let url = worker.url("/rpc/files?sandbox_id=sb-1&provider=mock&path=/workspace/big&mode=0600");
    let parts = futures_util::stream::iter((0..count).map({
        let part = bytes::Bytes::from(part);
        move |_| Ok::<_, std::io::Error>(part.clone())
    }));
    let request = worker.signed(worker.http.put(&url)).body(reqwest::Body::wrap_stream(parts));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 204, "{}", response.text().await.unwrap());
    let response = worker.signed(worker.http.get(&url)).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.content_length()), (200, Some((count << 20) as u64)));
    let mut hasher = Sha256::new();
    let mut body = futures_util::StreamExt::boxed(response.bytes_stream());
    while let Some(piece) = futures_util::StreamExt::next(&mut body).await {
        hasher.update(piece.unwrap());
    }
    assert!(expected == <[u8; 32]>::from(hasher.finalize()));
    let stat = worker.ok("worker.file_stat", json!({"sandbox_id": "sb-1", "path": "/workspace/big"})).await;
    assert_eq!(stat["file"]["mode"], "0600");
}

#[tokio::test]
async fn a_write_that_breaks_off_leaves_the_former_file() {
    let worker = with_sandbox().await;
    worker.exec("sb-1", "echo former > file").await;
    let pieces =
        futures_util::stream::iter([Ok(bytes::Bytes::from(vec![b'x'; 1 << 20])), Err(std::io::Error::other("cut"))]);
    let url = worker.url("/rpc/files?sandbox_id=sb-1&path=/workspace/file");
    let request = worker.signed(worker.http.put(url)).body(reqwest::Body::wrap_stream(pieces));
    assert!(request.send().await.is_err());
    let mut listed = serde_json::Value::Null;
    for _ in 0..500 {
        listed = worker.exec("sb-1", "cat file; ls -A").await["stdout"].clone();
        if listed == "former\nfile\n" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(listed, "former\nfile\n");
}

#[tokio::test]
async fn a_raw_route_says_what_is_wrong_in_the_envelope() {
    let worker = with_sandbox().await;
    for (query, status, code) in [
        ("sandbox_id=sb-1&path=/workspace/none", 404, "not_found"),
        ("sandbox_id=sb-2&path=/a", 404, "not_found"),
        ("sandbox_id=sb-1", 400, "invalid"),
        ("path=/a", 400, "invalid"),
        ("sandbox_id=sb-1&path=/a&provider=warp", 404, "provider_unavailable"),
    ] {
        let request = worker.signed(worker.http.get(worker.url(&format!("/rpc/files?{query}"))));
        let response = request.header("x-request-id", "req-9").send().await.unwrap();
        assert_eq!(response.headers()["x-worker-error"], code, "{query}");
        let (found, body) = answer(response).await;
        assert_eq!((found.as_u16(), body["code"].as_str()), (status, Some(code)), "{query}: {body}");
        assert_eq!((&body["id"], &body["worker_id"]), (&json!("req-9"), &json!(WORKER)));
    }
    let url = worker.url("/rpc/files?sandbox_id=sb-1&path=/workspace/a&mode=rwx");
    let (status, body) = answer(worker.signed(worker.http.put(url)).body("x").send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid")), "{body}");
}
