//! `tenure serve`: what it needs to start, what it refuses, how it ends.

use std::os::unix::fs::PermissionsExt;

use tenure_testkit::{Child, Output, Port, RawClient, Signal, Tenure};

use crate::commands::kit::{Home, SOON, Site, code, finish};

/// Starts a server that has to refuse.
async fn refused(home: &Home, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = home.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
    command.envs(variables.iter().copied());
    finish(command).await
}

#[tokio::test]
async fn it_says_one_line_when_it_is_ready_and_ends_with_0() {
    let mut site = Site::new().await;
    let token = site.server.data().join("worker-token");
    assert_eq!(std::fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&token).unwrap();
    assert_eq!(site.server.terminate().await.code(), Some(0));
    let output = site.server.output();
    assert_eq!(output.stdout, format!("tenure listening on {}\n", site.server.url()));
    assert!(output.stderr.contains(&token.display().to_string()), "{}", output.stderr);
    assert!(!output.stderr.contains(secret.trim()), "the token was printed");
}

#[tokio::test]
async fn the_token_is_kept_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let mut server = Tenure::serve_in(folder.path(), &[]).await;
        tokens.push(std::fs::read_to_string(folder.path().join("worker-token")).unwrap());
        server.terminate().await;
    }
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(tokens[0].trim().len(), 64);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut server = Tenure::serve(&[]).await;
    // A request whose body does not come: the drain waits for it, until somebody is tired of that.
    let mut slow = RawClient::connect(server.url()).await;
    let head = "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\
                Expect: 100-continue\r\n\r\n";
    slow.send(head).await.unwrap();
    slow.read_until("100 Continue", SOON).await;
    server.signal(Signal::SIGTERM);
    server.wait_for_stderr("stopping", SOON).await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(SOON).await.code(), Some(143));
}

#[tokio::test]
async fn a_network_address_needs_keys() {
    let home = Home::new();
    for (variables, part) in [
        (&[][..], "without auth.enabled anyone could use the API as an admin"),
        (&[("TENURE_AUTH__ENABLED", "true"), ("TENURE_AUTH__API_KEY", "k")][..], "no worker credential is set"),
        (
            &[
                ("TENURE_AUTH__ENABLED", "true"),
                ("TENURE_AUTH__API_KEY", "k"),
                ("TENURE_AUTH__WORKER_TOKEN", "t"),
                ("TENURE_AUTH__ANONYMOUS_WORKERS", "true"),
            ][..],
            "with auth.anonymous_workers anyone could take tasks",
        ),
    ] {
        let mut command = home.command(&["serve", "--listen", "0.0.0.0:0"]);
        command.envs(variables.iter().copied());
        let output = finish(command).await;
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(output.stderr.contains(part) && output.stderr.contains("hint: set auth."), "{}", output.stderr);
        assert_eq!(output.stdout, "");
    }
}

#[tokio::test]
async fn with_keys_it_takes_only_those_who_have_one() {
    let home = Home::new();
    let config = home.path().join("tenure.yaml");
    std::fs::write(&config, "auth:\n  enabled: true\n  api_key: user-key\n  worker_token: worker-key\n").unwrap();
    let mut server = Child::spawn(home.command(&["serve", "--listen", "0.0.0.0:0", "--data", "data"]));
    let line = server.wait_for_stdout("tenure listening on http://0.0.0.0:", SOON).await;
    let url = format!("http://127.0.0.1:{}", line.rsplit_once(':').unwrap().1);

    let without = home.run(&["task", "list", "--server", &url]).await;
    assert_eq!(code(&without), 4, "{without:?}");
    assert!(
        without.stderr.contains("missing_api_key") && without.stderr.contains("TENURE_API_KEY"),
        "{}",
        without.stderr
    );
    let wrong = home.run(&["task", "list", "--server", &url, "--api-key", "worker-key"]).await;
    assert_eq!(code(&wrong), 4);
    std::fs::write(home.path().join("key"), "user-key\n").unwrap();
    let right = home.run(&["task", "list", "--server", &url, "--api-key-file", "key"]).await;
    assert_eq!((code(&right), right.stdout.as_str()), (0, "No tasks.\n"));
    // The worker finds its token in the same configuration.
    let mut worker = Child::spawn(home.command(&["worker", "--server", &url]));
    worker.wait_for_stderr("worker started", SOON).await;
    let mut submit = home.command(&["task", "submit", "default", "echo", "--payload", "7", "--wait", "--server", &url]);
    submit.env("TENURE_API_KEY", "user-key");
    let done = finish(submit).await;
    assert_eq!(code(&done), 0, "{done:?}");
}

#[tokio::test]
async fn a_wrong_configuration_is_named_with_its_place() {
    let home = Home::new();
    for (text, part) in [
        ("server:\n  prot: 1\n", "tenure.yaml line 2: unknown key `server.prot`; did you mean `server.port`?"),
        ("auth:\n  enabled: true\n", "neither auth.api_key nor auth.admin_api_key is set"),
        ("auth: {worker_token: a, worker_token_file: b}\n", "are both set: keep one"),
        ("auth: {worker_token_file: missing}\n", "which cannot be read"),
        ("server: [\n", "tenure.yaml line"),
    ] {
        std::fs::write(home.path().join("tenure.yaml"), text).unwrap();
        let output = refused(&home, &[], &[]).await;
        assert_eq!(code(&output), 2, "{text}: {output:?}");
        assert!(output.stderr.contains(part), "{text}: {}", output.stderr);
    }
    std::fs::remove_file(home.path().join("tenure.yaml")).unwrap();
    let variable = refused(&home, &[], &[("TENURE_RETENTION__EVENTS", "long")]).await;
    assert_eq!(code(&variable), 2);
    assert!(
        variable.stderr.contains("the variable TENURE_RETENTION__EVENTS: retention.events must be a duration"),
        "{}",
        variable.stderr
    );
    let missing = refused(&home, &["--config", "nowhere.yaml"], &[]).await;
    assert_eq!(code(&missing), 2);
    assert!(missing.stderr.contains("nowhere.yaml could not be read"), "{}", missing.stderr);
}

#[tokio::test]
async fn a_store_that_it_cannot_use_is_an_error() {
    let home = Home::new();
    let site = Site::new().await;
    let data = site.server.data().display().to_string();
    let in_use = refused(&home, &["--data", &data], &[]).await;
    assert_eq!(code(&in_use), 1);
    assert!(in_use.stderr.contains("is open in another process"), "{}", in_use.stderr);

    let newer = home.path().join("newer.db");
    let connection = rusqlite::Connection::open(&newer).unwrap();
    connection.pragma_update(None, "user_version", 1_000_000).unwrap();
    drop(connection);
    let output = refused(&home, &["--store", &format!("sqlite:{}", newer.display())], &[]).await;
    assert_eq!(code(&output), 1);
    assert!(output.stderr.contains("start a newer tenure"), "{}", output.stderr);

    let nowhere = refused(&home, &["--store", "sqlite:/nowhere/at/all.db"], &[]).await;
    assert_eq!(code(&nowhere), 1);
    assert!(nowhere.stderr.contains("could not be opened"), "{}", nowhere.stderr);
    let unknown = refused(&home, &["--store", "mysql://u:hunter2@h/d"], &[]).await;
    assert_eq!(code(&unknown), 2);
    assert!(unknown.stderr.contains("a store is `sqlite:PATH` or"), "{}", unknown.stderr);
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error() {
    let site = Site::new().await;
    let address = site.server.url().trim_start_matches("http://");
    let output = site.home.run(&["serve", "--listen", address]).await;
    assert_eq!(code(&output), 1);
    assert!(output.stderr.contains("cannot listen on") && output.stderr.contains("with --listen"), "{}", output.stderr);
}

#[tokio::test]
async fn a_postgres_that_is_not_there_is_waited_for_and_the_password_is_not_shown() {
    let home = Home::new();
    let port = Port::reserve();
    let store = format!("postgres://tenure:hunter2@127.0.0.1:{}/tenure", port.number());
    let mut server = Child::spawn(home.command(&["serve", "--listen", "127.0.0.1:0", "--store", &store]));
    server.wait_for_stderr("trying again", SOON).await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(SOON).await.code(), Some(0));
    let output = server.output();
    assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
}
