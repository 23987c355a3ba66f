//! What is set up wrongly does not start, says what is wrong and where, and no secret.

use std::process::Command;

use tenure_testkit::{Child, wait_until};

use crate::security::kit::{Desk, PATIENCE};

const SECRET: &str = "s3cret-that-nobody-may-see-0123456789";

/// What is wrong.
struct Wrong {
    yaml: String,
    /// A variable of the environment.
    variable: Option<(&'static str, String)>,
    args: &'static [&'static str],
    /// Said in the message: the key, and where it stands.
    said: &'static [&'static str],
}

fn yaml(text: &str, said: &'static [&'static str]) -> Wrong {
    Wrong { yaml: text.replace("SECRET", SECRET), variable: None, args: &[], said }
}

fn variable(text: &str, name: &'static str, value: &str, said: &'static [&'static str]) -> Wrong {
    Wrong { variable: Some((name, value.replace("SECRET", SECRET))), ..yaml(text, said) }
}

fn listening(text: &str, said: &'static [&'static str]) -> Wrong {
    Wrong { args: &["--listen", "0.0.0.0:0"], ..yaml(text, said) }
}

fn table() -> Vec<Wrong> {
    let keys = "auth:\n  enabled: true\n  api_key: SECRET\n";
    let with_keys = |more: &str| format!("{keys}{more}");
    vec![
        // Who could be let in without being known.
        listening("auth: {worker_token: SECRET}", &["auth.enabled", "0.0.0.0", "TENURE_AUTH__ENABLED=true"]),
        yaml("server: {host: 0.0.0.0, port: 0}\nauth: {worker_token: SECRET}", &["auth.enabled", "0.0.0.0"]),
        listening(keys, &["0.0.0.0", "no worker credential", "auth.worker_token_file"]),
        listening(
            &with_keys("  worker_token: worker-SECRET\n  anonymous_workers: true"),
            &["auth.anonymous_workers", "0.0.0.0"],
        ),
        yaml("auth:\n  enabled: true\n", &["auth.enabled", "tenure.yaml", "2", "auth.api_key"]),
        // Certificates.
        yaml("server:\n  tls:\n    cert_file: certs/server.crt", &["server.tls.key_file", "tenure.yaml"]),
        yaml("server:\n  tls:\n    key_file: certs/server.key", &["server.tls.cert_file", "tenure.yaml"]),
        yaml("server: {tls: {cert_file: bad, key_file: certs/server.key}}", &["server.tls", "bad"]),
        yaml("server: {tls: {cert_file: certs/server.crt, key_file: bad}}", &["server.tls", "bad"]),
        yaml("server: {tls: {cert_file: certs/server.crt, key_file: certs/client.key}}", &["server.tls", "client.key"]),
        yaml("server: {tls: {cert_file: absent, key_file: certs/server.key}}", &["server.tls", "absent"]),
        yaml("auth: {worker_private_key_file: bad}", &["auth.worker_private_key_file"]),
        yaml("auth: {worker_public_keys: [SECRET]}", &["auth.worker_public_keys"]),
        yaml("dispatch: {capability: {key_file: bad}}", &["dispatch.capability.key_file"]),
        yaml("dispatch: {capability: {key_file: empty}}", &["dispatch.capability.key_file", "empty"]),
        // Secrets.
        yaml("auth:\n  worker_token_file: empty", &["auth.worker_token_file", "tenure.yaml", "2", "empty"]),
        yaml("auth:\n  worker_token_file: absent", &["auth.worker_token_file", "tenure.yaml", "2", "absent"]),
        yaml(
            "auth:\n  api_key: SECRET\n  api_key_file: token",
            &["auth.api_key", "auth.api_key_file", "tenure.yaml", "2"],
        ),
        variable(
            "auth:\n  admin_api_key_file: token",
            "TENURE_AUTH__ADMIN_API_KEY",
            "SECRET",
            &["auth.admin_api_key", "TENURE_AUTH__ADMIN_API_KEY", "tenure.yaml", "2"],
        ),
        yaml(
            &with_keys("  worker_token: SECRET"),
            &["auth.worker_token", "auth.api_key", "tenure.yaml", "line 4", "line 3"],
        ),
        variable(
            keys,
            "TENURE_AUTH__WORKER_TOKENS",
            r#"{"w-1": "SECRET"}"#,
            &["auth.worker_tokens", "TENURE_AUTH__WORKER_TOKENS", "auth.api_key"],
        ),
        yaml(&with_keys("  worker_signing_keys: [SECRET]"), &["auth.worker_signing_keys", "auth.api_key"]),
        yaml(&with_keys("  worker_bootstrap_keys: {w-1: SECRET}"), &["auth.worker_bootstrap_keys", "auth.api_key"]),
        yaml("auth:\n  worker_bootstrap_keys: {w-1: 'sha256:SECRET'}", &["auth.worker_bootstrap_keys", "w-1"]),
        yaml("callback: {shared_secret: short}", &["callback.shared_secret"]),
        // What nobody knows, and what makes no sense.
        yaml("auth:\n  worker_tokn: SECRET", &["auth.worker_tokn", "auth.worker_token", "tenure.yaml", "2"]),
        variable("", "TENURE_AUTH__WORKER_TOKN", "SECRET", &["TENURE_AUTH__WORKER_TOKN"]),
        yaml("auth: [SECRET]", &["tenure.yaml line 1"]),
        yaml("auth:\n  worker_tokens: SECRET", &["tenure.yaml line 2"]),
        yaml("auth:\n  api_key: \"SECRET", &["tenure.yaml"]),
        yaml("retention: {finished: soon}", &["retention.finished", "tenure.yaml"]),
        yaml("database: {driver: postgres, dsn: 'mysql://u:SECRET@h/d'}", &["database.dsn"]),
        variable("", "TENURE_STORE", "mysql://u:SECRET@h/d", &["TENURE_STORE", "postgres://"]),
        // An identity provider.
        yaml(
            "auth:\n  enabled: true\n  oidc_enabled: true\n  oidc_jwks_url: https://id.example.com/keys",
            &["auth.oidc_issuer"],
        ),
        yaml(
            "auth:\n  enabled: true\n  oidc_enabled: true\n  oidc_issuer: https://id.example.com",
            &["auth.oidc_jwks_url"],
        ),
        yaml("auth:\n  oidc_enabled: true\n  oidc_jwks_url: 'SECRET'", &["auth.oidc_jwks_url", "tenure.yaml", "3"]),
        yaml(
            "auth: {enabled: true, oidc_enabled: true, oidc_issuer: i, oidc_public_key_file: bad}",
            &["auth.oidc_public_key"],
        ),
    ]
}

fn serve(desk: &Desk, wrong: &Wrong) -> Command {
    desk.file("tenure.yaml", &wrong.yaml);
    let listen: &[&str] = match (wrong.args, wrong.yaml.contains("host:")) {
        ([], false) => &["--listen", "127.0.0.1:0"],
        (args, _) => args,
    };
    let mut command = desk.command(&[&["serve", "--config", "tenure.yaml", "--data", "data"], listen].concat());
    if let Some((name, value)) = &wrong.variable {
        command.env(name, value);
    }
    command
}

#[tokio::test]
async fn a_server_that_is_set_up_wrongly_says_what_and_where_and_ends_with_2() {
    let desk = Desk::new();
    desk.certs("certs").await;
    desk.file("empty", " \n");
    desk.file("token", &format!("{SECRET}\n"));
    desk.file("bad", &format!("-----BEGIN CERTIFICATE-----\n{SECRET}\n-----END CERTIFICATE-----\n"));
    let mut problems = Vec::new();
    for wrong in table() {
        let mut child = Child::spawn(serve(&desk, &wrong));
        let ended = wait_until("it ends, or starts after all", PATIENCE, async || {
            let output = child.output();
            (output.status.is_some() || !output.stdout.is_empty()).then_some(output.status)
        });
        match ended.await {
            Some(_) => drop(child.wait(PATIENCE).await),
            None => child.kill(),
        }
        let output = child.output();
        let said = &output.stderr;
        let missing = wrong.said.iter().filter(|part| !said.contains(**part)).map(|part| format!("without {part}"));
        let checks = [
            (output.status.and_then(|status| status.code()) != Some(2), "wrong exit code"),
            (!output.stdout.is_empty(), "something on stdout"),
            (said.contains(SECRET), "a secret is shown"),
        ];
        let failed = checks.into_iter().filter(|(failed, _)| *failed).map(|(_, what)| what.to_owned());
        let failed: Vec<_> = failed.chain(missing).collect();
        if !failed.is_empty() {
            problems.push(format!("{}\n{}\n=> {}", wrong.yaml, said, failed.join(", ")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
