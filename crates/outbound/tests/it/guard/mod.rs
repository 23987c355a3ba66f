//! Requests against real listeners, with names that resolve to what the test wants.

mod stand;

use std::time::{Duration, Instant};

use stand::{Listener, Names};
use tenure_outbound::{
    Class, ClientCert, Method, Outbound, OutboundError, Policy, Refused, Request, StatusCode, Trust,
};

const SOON: Duration = Duration::from_secs(60);

fn dev() -> Policy {
    Policy { allow_http: true, allow_loopback: true, ..Policy::default() }
}

fn strict() -> Policy {
    Policy { allow_http: true, ..Policy::default() }
}

fn outbound(policy: Policy, names: &Names) -> Outbound {
    Outbound::with_resolver(policy, &Trust::System, names.clone()).unwrap()
}

#[tokio::test]
async fn a_name_is_refused_for_any_bad_address_that_it_resolves_to() {
    let table: [(&[&str], Option<Class>); 11] = [
        (&["127.0.0.1"], Some(Class::Loopback)),
        (&["::1"], Some(Class::Loopback)),
        (&["10.0.0.1"], Some(Class::Private)),
        (&["169.254.169.254"], Some(Class::Metadata)),
        (&["::ffff:169.254.169.254"], Some(Class::Metadata)),
        (&["fd00:ec2::254"], Some(Class::Metadata)),
        (&["fe80::1"], Some(Class::LinkLocal)),
        (&["0.0.0.0"], Some(Class::Unspecified)),
        (&["1.1.1.1", "10.0.0.1"], Some(Class::Private)),
        (&["10.0.0.1", "1.1.1.1"], Some(Class::Private)),
        (&["1.1.1.1", "2606:4700::1111"], None),
    ];
    let listener = Listener::start("127.0.0.1:0").await;
    for (addresses, expected) in table {
        let names = Names::answering(&[addresses]);
        let outbound = outbound(strict(), &names);
        let url = listener.url("worker.example", "/hunter2?token=hunter2");
        let checked = outbound.check_address(&url).await.map(|_| ());
        let Some(expected) = expected else {
            checked.unwrap();
            continue;
        };
        for result in [checked, outbound.get(&url, SOON).await.map(|_| ())] {
            let error = result.unwrap_err();
            let OutboundError::Refused(Refused::Resolved { class, .. }) = &error else {
                panic!("{addresses:?}: {error:?}");
            };
            assert_eq!(*class, expected, "{addresses:?}");
            assert!(error.to_string().contains("worker.example"), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
    assert_eq!(listener.connections(), 0);
}

#[tokio::test]
async fn names_of_this_machine_are_resolved_and_refused() {
    let listener = Listener::start("127.0.0.1:0").await;
    let outbound = Outbound::new(strict(), &Trust::System).unwrap();
    for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]"] {
        let error = outbound.get(&listener.url(host, "/"), SOON).await.unwrap_err();
        assert!(matches!(error, OutboundError::Refused(_)), "{host}: {error:?}");
    }
    assert_eq!(listener.connections(), 0);
    let dev = Outbound::new(dev(), &Trust::System).unwrap();
    for host in ["localhost", "127.0.0.1", "127.1", "2130706433"] {
        assert_eq!(dev.get(&listener.url(host, "/"), SOON).await.unwrap().status, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn the_connection_goes_to_the_address_that_was_checked() {
    let (checked, other) = Listener::pair("127.0.0.2", "127.0.0.1").await;
    // Whoever asks a second time for this connection is sent elsewhere.
    let names = Names::answering(&[&["127.0.0.2"], &["127.0.0.1"]]);
    outbound(dev(), &names).get(&checked.url("rebinding.example", "/"), SOON).await.unwrap();
    assert_eq!((checked.connections(), other.connections(), names.lookups()), (1, 0, 1));
}

#[tokio::test]
async fn a_name_that_turns_bad_after_the_check_is_refused_at_the_connect() {
    let listener = Listener::start("127.0.0.1:0").await;
    let names = Names::answering(&[&["1.1.1.1"], &["127.0.0.1"]]);
    let outbound = outbound(strict(), &names);
    let url = listener.url("rebinding.example", "/");
    outbound.check_address(&url).await.unwrap();
    let error = outbound.get(&url, SOON).await.unwrap_err();
    assert!(matches!(error, OutboundError::Refused(Refused::Resolved { class: Class::Loopback, .. })), "{error:?}");
    assert_eq!(listener.connections(), 0);
}

#[tokio::test]
async fn connections_are_kept_without_another_look_up() {
    let listener = Listener::start("127.0.0.1:0").await;
    let names = Names::answering(&[&["127.0.0.1"], &["10.0.0.1"]]);
    let outbound = outbound(dev(), &names);
    for _ in 0..3 {
        outbound.post(&listener.url("kept.example", "/"), Default::default(), "{}", SOON).await.unwrap();
    }
    assert_eq!((listener.connections(), listener.requests(), names.lookups()), (1, 3, 1));
}

#[tokio::test]
async fn an_answer_is_there_with_its_head_whatever_becomes_of_the_body() {
    let listener = Listener::start("127.0.0.1:0").await;
    let outbound = outbound(dev(), &Names::default());
    // More is announced than ever comes.
    listener.answer("HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\n01234".to_owned());
    let url = listener.url("127.0.0.1", "/");
    let opened = outbound.open(Request::new(Method::POST, &url, Duration::from_secs(3))).await.unwrap();
    assert_eq!(opened.status.as_u16(), 202);
    // It ends when the time of the request is up, and says nothing about it.
    opened.drain().await;
}

#[tokio::test]
async fn a_request_says_how_long_it_is() {
    let listener = Listener::start("127.0.0.1:0").await;
    let outbound = outbound(dev(), &Names::default());
    outbound.post(&listener.url("127.0.0.1", "/"), Default::default(), "{\"a\":1}", SOON).await.unwrap();
    let sent = listener.last();
    assert!(sent.contains("content-length: 7\r\n") && sent.ends_with("\r\n\r\n{\"a\":1}"), "{sent}");
    outbound.get(&listener.url("127.0.0.1", "/"), SOON).await.unwrap();
    let sent = listener.last();
    assert!(sent.starts_with("GET ") && !sent.contains("content-length") && !sent.contains("chunked"), "{sent}");
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let (listener, elsewhere) = (Listener::start("127.0.0.1:0").await, Listener::start("127.0.0.1:0").await);
    let location = elsewhere.url("127.0.0.1", "/secret");
    for status in [301, 302, 303, 307, 308] {
        listener.answer(format!("HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"));
        let answer = outbound(dev(), &Names::default()).get(&listener.url("127.0.0.1", "/"), SOON).await.unwrap();
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.headers["location"], *location);
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn little_of_an_answer_is_read() {
    let listener = Listener::start("127.0.0.1:0").await;
    let outbound = outbound(dev(), &Names::default());
    let limit = 64 * 1024;
    for (bytes, read, truncated) in
        [(10, 10, false), (limit, limit, false), (limit + 1, limit, true), (4 << 20, limit, true)]
    {
        listener.answer(format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n{}", "x".repeat(bytes)));
        let answer = outbound.get(&listener.url("127.0.0.1", "/"), SOON).await.unwrap();
        assert_eq!((answer.body.len(), answer.truncated), (read, truncated), "{bytes}");
    }
    listener.answer("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789".to_owned());
    let url = listener.url("127.0.0.1", "/");
    let mut request = Request::new(Method::GET, &url, SOON);
    request.answer_bytes = 4;
    assert_eq!(outbound.request(request).await.unwrap().body, "0123");
}

#[tokio::test]
async fn a_request_ends_when_its_time_is_up() {
    let listener = Listener::start("127.0.0.1:0").await;
    let outbound = outbound(dev(), &Names::default());
    // No answer at all, and one that stops in the middle.
    for partial in ["", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234"] {
        listener.answer(partial.to_owned());
        let start = Instant::now();
        let url = listener.url("127.0.0.1", "/hunter2");
        let error = outbound.get(&url, Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, OutboundError::Timeout { .. }), "{error:?}");
        assert!(start.elapsed() < SOON);
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn a_name_without_an_address_and_a_closed_port_are_told_apart() {
    // Bound and not listening: nobody else gets it meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = bound.local_addr().unwrap().port();
    let closed = format!("http://127.0.0.1:{port}/hunter2");
    let outbound = outbound(dev(), &Names::default());
    let error = outbound.get(&closed, SOON).await.unwrap_err();
    assert!(matches!(error, OutboundError::Connect { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    let nobody = "http://nobody.example/hunter2";
    let asked = outbound.get(nobody, SOON).await.map(|_| ());
    for result in [outbound.check_address(nobody).await.map(|_| ()), asked] {
        let error = result.unwrap_err();
        assert!(matches!(error, OutboundError::Unresolved { .. }), "{error:?}");
        assert_eq!(error.to_string(), "nobody.example has no address");
    }
}

#[tokio::test]
async fn https_is_for_servers_of_the_trusted_ca() {
    let folder = tempfile::TempDir::new().unwrap();
    tenure_tls::dev_certs(folder.path(), &[], &[]).unwrap();
    let file = |name: &str| folder.path().join(name);
    let address = stand::serve_tls(tenure_tls::ServerTls::new(file("server.crt"), file("server.key"))).await;
    let policy = || Policy { allow_loopback: true, ..Policy::default() };
    let names = Names::answering(&[&["127.0.0.1"]]);
    let trust = Trust::Only(std::fs::read(file("ca.crt")).unwrap());
    let trusting = Outbound::with_resolver(policy(), &trust, names.clone()).unwrap();
    let good = format!("https://localhost:{}/", address.port());
    assert_eq!(trusting.get(&good, SOON).await.unwrap().status, StatusCode::OK);
    let wrong_name = format!("https://other.example:{}/", address.port());
    let system = Outbound::with_resolver(policy(), &Trust::System, names).unwrap();
    for result in [trusting.get(&wrong_name, SOON).await, system.get(&good, SOON).await] {
        let error = result.unwrap_err();
        assert!(matches!(error, OutboundError::Connect { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let folder = tempfile::TempDir::new().unwrap();
    tenure_tls::dev_certs(folder.path(), &[], &[]).unwrap();
    let file = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read(file(name)).unwrap();
    let tls = tenure_tls::ServerTls {
        client_ca_file: Some(file("ca.crt")),
        client_auth: tenure_tls::ClientAuth::Required,
        ..tenure_tls::ServerTls::new(file("server.crt"), file("server.key"))
    };
    let address = stand::serve_tls(tls).await;
    let policy = Policy { allow_loopback: true, ..Policy::default() };
    let trust = Trust::Only(read("ca.crt"));
    let bare = Outbound::with_resolver(policy, &trust, Names::answering(&[&["127.0.0.1"]])).unwrap();
    let url = format!("https://localhost:{}/", address.port());
    assert!(bare.get(&url, SOON).await.is_err());
    let cert = ClientCert { chain: read("client.crt"), key: read("client.key") };
    let with_cert = bare.with_tls(&trust, Some(&cert)).unwrap();
    assert_eq!(with_cert.get(&url, SOON).await.unwrap().status, StatusCode::OK);
    // The guard is the same.
    assert!(with_cert.check_url("https://169.254.169.254/").is_err());
    let halves = ClientCert { chain: read("client.crt"), key: b"nothing".to_vec() };
    assert!(matches!(bare.with_tls(&trust, Some(&halves)), Err(OutboundError::Setup(_))));
    assert_eq!(format!("{halves:?}"), "ClientCert(***)");
}

#[test]
fn a_bundle_that_is_no_pem_is_refused() {
    let bundle = Trust::Only(b"-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n".to_vec());
    assert!(matches!(Outbound::new(Policy::default(), &bundle), Err(OutboundError::Setup(_))));
}

/// Runs itself as a process that has the variables: they are for the whole process.
#[test]
fn proxies_of_the_environment_are_ignored() {
    const INNER: &str = "TENURE_TEST_UNDER_PROXY";
    if std::env::var_os(INNER).is_some() {
        return tokio::runtime::Runtime::new().unwrap().block_on(async {
            let listener = Listener::start("127.0.0.1:0").await;
            let outbound = outbound(dev(), &Names::answering(&[&["127.0.0.1"]]));
            for host in ["127.0.0.1", "worker.example"] {
                assert_eq!(outbound.get(&listener.url(host, "/"), SOON).await.unwrap().status, StatusCode::OK);
            }
            assert_eq!(listener.requests(), 2);
        });
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "guard::proxies_of_the_environment_are_ignored"]).env(INNER, "1").env_remove("NO_PROXY");
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        // Nobody listens there: whoever uses it fails.
        command.env(name, "http://127.0.0.1:9");
    }
    let output = command.env_remove("no_proxy").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
