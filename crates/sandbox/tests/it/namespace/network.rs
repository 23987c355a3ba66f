use tenure_sandbox::{Command, Egress, ErrorKind, Provider, Spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Machine;
use crate::kit::{read_until, sh, text};

#[tokio::test]
async fn a_sandbox_has_no_way_out() {
    let Some(machine) = Machine::new("a_sandbox_has_no_way_out") else { return };
    let provider = &machine.provider;
    let host = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = host.local_addr().expect("an address").port();
    let id = machine.spawn().await.id;
    assert_eq!(text(provider, &id, "cat /proc/net/dev | wc -l; cat /proc/net/route | wc -l").await, "3\n1\n");
    for address in [format!("127.0.0.1/{port}"), "169.254.169.254/80".to_owned(), "1.1.1.1/53".to_owned()] {
        let output = sh(provider, &id, &format!("bash -c 'exec 3<>/dev/tcp/{address}'")).await;
        assert_ne!(output.exit().code, 0, "{address} was reached");
    }
    provider.destroy(&id).await.expect("an end");
}

const SERVER: &str = "exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => \"127.0.0.1\", \
    LocalPort => 8080, Listen => 5) or die; $| = 1; print \"ready\\n\"; while ($c = $s->accept) { print $c \"got \", \
    scalar <$c>; close $c }'";

#[tokio::test]
async fn a_port_in_a_sandbox_is_reached_from_outside_and_only_there() {
    let Some(machine) = Machine::new("a_port_in_a_sandbox_is_reached") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    let other = machine.spawn().await.id;
    let mut server = provider.exec(&id, Command::shell(SERVER, &[])).await.expect("a server");
    read_until(&mut server, "ready").await;
    let mut connection = provider.dial(&id, 8080).await.expect("a connection");
    connection.write_all(b"hello\n").await.expect("room");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(answer, "got hello\n");
    assert!(provider.dial(&other, 8080).await.is_err(), "another sandbox has the port");
    assert_eq!(provider.dial(&id, 8081).await.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    drop(server);
    for id in [id, other] {
        provider.destroy(&id).await.expect("an end");
    }
}

/// Answers every request with its first line.
async fn echo_server() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let length = stream.read(&mut head).await.unwrap_or(0);
                let line = String::from_utf8_lossy(&head[..length]).lines().next().unwrap_or("").to_owned();
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{line}", line.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

/// A request through the proxy, in Perl: the first argument is what is sent.
fn through_proxy(request: &str) -> String {
    format!(
        "perl -MIO::Socket::INET -e 'alarm 30; $s = IO::Socket::INET->new(\"127.0.0.1:3128\") or die; print $s \"{request}\"; \
         local $/; print <$s>'"
    )
}

#[tokio::test]
async fn allowed_hosts_are_reached_through_the_proxy_and_the_list_changes_while_it_runs() {
    let Some(machine) = Machine::new("allowed_hosts_are_reached_through_the_proxy") else { return };
    let provider = &machine.provider;
    let port = echo_server().await;
    let hosts = vec![format!("127.0.0.1:{port}")];
    let id = machine.spawn_with(|spec| spec.egress = Egress::Allow(hosts)).await.id;
    assert_eq!(
        text(provider, &id, "echo $HTTP_PROXY $https_proxy").await,
        "http://127.0.0.1:3128 http://127.0.0.1:3128\n"
    );

    let get = through_proxy(&format!("GET http://127.0.0.1:{port}/path HTTP/1.1\\r\\n\\r\\n"));
    assert!(text(provider, &id, &get).await.ends_with("GET /path HTTP/1.1"));
    let tunnel =
        through_proxy(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\nGET /inside HTTP/1.1\\r\\n\\r\\n"));
    assert!(text(provider, &id, &tunnel).await.ends_with("GET /inside HTTP/1.1"));

    // Other names, ports and hosts, and the metadata service.
    for target in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{}", port ^ 1),
        "169.254.169.254:80".to_owned(),
        "[::1]:80".to_owned(),
    ] {
        let refused = text(provider, &id, &through_proxy(&format!("CONNECT {target} HTTP/1.1\\r\\n\\r\\n"))).await;
        assert!(refused.starts_with("HTTP/1.1 403"), "{target}: {refused}");
    }
    // A name on the list that resolves to a private address.
    provider.set_allowed_hosts(&id, vec!["localhost".to_owned()]).await.expect("another list");
    let request = format!("CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n");
    assert!(text(provider, &id, &through_proxy(&request)).await.contains("no public address"));
    provider.set_allowed_hosts(&id, Vec::new()).await.expect("another list");
    assert!(text(provider, &id, &get).await.starts_with("HTTP/1.1 403"));
    provider.set_allowed_hosts(&id, vec!["127.0.0.1".to_owned()]).await.expect("another list");
    assert!(text(provider, &id, &get).await.ends_with("GET /path HTTP/1.1"));
    assert!(provider.set_allowed_hosts(&id, vec!["no host".to_owned()]).await.is_err());
    // Only what a sandbox was created with can change.
    let closed = machine.spawn().await.id;
    let error = provider.set_allowed_hosts(&closed, vec!["127.0.0.1".to_owned()]).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for id in [id, closed] {
        provider.destroy(&id).await.expect("an end");
    }
}

#[tokio::test]
async fn a_provider_without_allow_lists_refuses_sandboxes_that_name_hosts() {
    let test = "a_provider_without_allow_lists_refuses_sandboxes_that_name_hosts";
    let Some(machine) = Machine::with(test, |settings| settings.allow_lists = false) else { return };
    assert!(!machine.provider.capabilities().egress_allow_list);
    let mut spec = Spec::new("sb-test", "host");
    spec.egress = Egress::Allow(vec!["example.com".to_owned()]);
    let error = machine.provider.spawn(spec).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    machine.spawn().await;
}
