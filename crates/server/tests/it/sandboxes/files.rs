//! Files of sandboxes.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_testkit::RawClient;

use super::kit::Plane;
use crate::cases;
use crate::harness::SOON;

cases!(
    Plane,
    on_sqlite: [files_are_written_listed_moved_and_deleted, parts_of_a_file_are_read, odd_paths_are_refused, a_body_that_stops_writes_nothing],
    on_both_stores: [a_large_file_is_streamed_both_ways],
);

async fn files_are_written_listed_moved_and_deleted(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let at = |rest: &str| format!("/api/v1/sandboxes/{sandbox}/files{rest}");
    let server = &plane.server;
    for body in [
        json!({"path": "/workspace/d/a.txt", "content": "one", "mode": "0600", "content_b64": null}),
        json!({"path": "/workspace/d/b.bin", "content_b64": "/wA=", "mode": ""}),
        json!({"path": "/workspace/d/empty"}),
    ] {
        assert_eq!(server.post(&at(""), body).await.ok(), json!({"status": "written"}));
    }
    let list = server.get(&at("/list?path=/workspace/d")).await.ok();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a.txt", "b.bin", "empty"]);
    let file = server.get(&at("/stat?path=/workspace/d/a.txt")).await.ok();
    assert_eq!((&file["size"], &file["mode"], &file["is_dir"]), (&json!(3), &json!("0600"), &json!(false)), "{file}");
    assert_eq!(server.get(&at("/glob?pattern=/workspace/**/*.txt")).await.ok(), json!(["/workspace/d/a.txt"]));
    let renamed = json!({"old_path": "/workspace/d/a.txt", "new_path": "/workspace/c.txt"});
    assert_eq!(server.post(&at("/move"), renamed).await.ok(), json!({"status": "moved"}));
    let mode = json!({"path": "/workspace/c.txt", "mode": "755"});
    assert_eq!(server.post(&at("/chmod"), mode).await.ok(), json!({"status": "chmod applied"}));
    assert_eq!(server.get(&at("/stat?path=/workspace/c.txt")).await.ok()["mode"], "0755");
    assert_eq!(server.get(&at("?path=/workspace/d/a.txt")).await.refused(404)["code"], "NOT_FOUND");
    assert_eq!(server.delete(&at("?path=/workspace/d&recursive=true")).await.ok(), json!({"status": "deleted"}));
    assert_eq!(server.get(&at("/stat?path=/workspace/d")).await.status, 404);
    let rows = server.get("/api/v1/audit").await.ok();
    let actions: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap().to_owned()).collect();
    for row in rows.as_array().unwrap() {
        assert_eq!((&row["sandbox_id"], &row["provider"]), (&json!(sandbox), &json!("process")), "{row}");
    }
    let moved = rows.as_array().unwrap().iter().find(|row| row["action"] == "file_chmod").unwrap();
    assert_eq!((&moved["resource"], &moved["detail"]), (&json!("/workspace/c.txt"), &json!("mode 755")));
    for action in [
        "spawn",
        "file_write",
        "file_list",
        "file_stat",
        "file_glob",
        "file_move",
        "file_chmod",
        "file_read",
        "file_delete",
    ] {
        assert!(actions.iter().any(|known| known == action), "{action} of {actions:?}");
    }
}

async fn parts_of_a_file_are_read(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let path = format!("/api/v1/sandboxes/{sandbox}/files");
    plane.server.post(&path, json!({"path": "/workspace/a", "content": "0123456789"})).await.ok();
    for (range, status, expected) in [
        ("bytes=2-4", 206, "234"),
        ("bytes=-3", 206, "789"),
        ("bytes=8-", 206, "89"),
        ("bytes=0-0", 206, "0"),
        ("bytes=0-1,3-4", 200, "0123456789"),
        ("lines=1", 200, "0123456789"),
    ] {
        let url = format!("{}{path}?path=/workspace/a", plane.server.url);
        let answer = reqwest::Client::new().get(url).header("Range", range).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{range}");
        assert_eq!(answer.headers()["content-length"], expected.len().to_string().as_str());
        assert_eq!(answer.text().await.unwrap(), expected, "{range}");
    }
    let headers = [("Range", "bytes=10-")];
    let answer = plane.server.call(Method::GET, &format!("{path}?path=/workspace/a"), &headers, None).await;
    assert_eq!((answer.status, answer.header("content-range")), (StatusCode::RANGE_NOT_SATISFIABLE, "bytes */10"));
}

async fn a_large_file_is_streamed_both_ways(plane: Plane) {
    let sandbox = plane.sandbox().await;
    // More than a call may hold in memory.
    let size = 70 << 20;
    let content: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
    let url = format!("{}/api/v1/sandboxes/{sandbox}/files?path=/workspace/large&mode=0640", plane.server.url);
    let answer = reqwest::Client::new().put(&url).body(content.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({"status": "written"}));
    let read = reqwest::get(&url).await.unwrap().bytes().await.unwrap();
    assert!(read == content, "{} bytes came back", read.len());
    let ended = plane.exec(&sandbox, "stat -c '%s %a' large").await;
    assert_eq!(ended["stdout"], format!("{size} 640\n"));
}

async fn odd_paths_are_refused(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let at = |rest: &str| format!("/api/v1/sandboxes/{sandbox}/files{rest}");
    for path in ["../../etc/passwd", "/workspace/../../etc/passwd", "/a%00b", ""] {
        let answer = plane.server.get(&at(&format!("?path={path}"))).await;
        assert!([400, 404].contains(&answer.status.as_u16()), "{path}: {} {}", answer.status, answer.body);
        assert!(!answer.body.to_string().contains("root:"), "{path}");
    }
    for body in [
        json!({"path": "../../tmp/escape", "content": "x"}),
        json!({"path": "", "content": "x"}),
        json!({"content": "x"}),
        json!({"path": "/workspace/a", "content_b64": "not base64"}),
        json!({"path": "/workspace/a", "content": "x", "mode": "rwx"}),
        json!({"path": "/workspace/a\u{0}b", "content": "x"}),
        json!({"path": ["/a"], "content": "x"}),
    ] {
        let refused = plane.server.post(&at(""), body.clone()).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
    }
    assert!(!std::path::Path::new("/tmp/escape").exists());
    assert_eq!(plane.server.delete(&at("")).await.status, 400);
    assert_eq!(plane.server.delete(&at("?path=/workspace&recursive=maybe")).await.status, 400);
}

async fn a_body_that_stops_writes_nothing(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let mut client = RawClient::connect(&plane.server.url).await;
    let head = format!(
        "PUT /api/v1/sandboxes/{sandbox}/files?path=/workspace/cut HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf"
    );
    client.send(head).await.unwrap();
    drop(client);
    let audited = async || {
        let rows = plane.server.get("/api/v1/audit?action=file_write").await.ok();
        rows.as_array().unwrap().iter().any(|row| row["status"] == "refused").then_some(())
    };
    tenure_testkit::wait_until("the upload has failed", SOON, audited).await;
    let path = format!("/api/v1/sandboxes/{sandbox}/files/stat?path=/workspace/cut");
    assert_eq!(plane.server.get(&path).await.status, 404);
}
