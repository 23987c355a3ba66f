use super::Kind::{Bool, Choice, Dsn, Duration, File, Integer, Text, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "server.host" Text, "127.0.0.1", Restart,
        "Address or name to listen on. Anything but a loopback address needs `auth.enabled` and a worker credential. The flag `--listen` sets it together with the port.";
    "server.port" Integer, "7423", Restart,
        "Port to listen on. 0 takes a free one.";
    "server.tls.cert_file" File, "", Reload,
        "Certificate chain in PEM, the server's own first. Set together with the key it turns TLS on.";
    "server.tls.key_file" File, "", Reload,
        "Private key of the certificate, in PEM.";
    "server.tls.client_ca_file" File, "", Reload,
        "Roots, in PEM, under which certificates of clients are accepted.";
    "server.tls.client_auth" Choice(&["off", "optional", "required"]), "off", Reload,
        "Whether clients show a certificate. With `server.tls.client_ca_file` and without this key it is `required`.";
    "server.cors_allowed_origins" Texts, "", Reload,
        "Origins whose pages may call the API from a browser: `https://console.example.com`, or `*` for all.";
    "server.max_connections" Integer, "10000", Restart,
        "Open connections at a time. More are left waiting in the backlog of the system.";
    "server.trusted_proxies" Texts, "", Reload,
        "Networks, such as `10.0.0.0/8`, whose `X-Forwarded-For` is believed. Without any the address of the connection counts.";

    "database.driver" Choice(&["sqlite", "postgres"]), "sqlite", Restart,
        "Kind of the store. SQLite is for one control plane, Postgres for any number.";
    "database.path" Text, "tenure.db", Restart,
        "File of an SQLite store. What is not absolute starts in the data folder.";
    "database.dsn" Dsn, "", Restart,
        "Address of a Postgres: `postgres://user:password@host/database?sslmode=verify-full`. The flag `--store` or the variable `TENURE_STORE` sets it too.";
    "database.tls.ca_file" File, "", Restart,
        "Roots, in PEM, for the certificate of the Postgres. Without it those of the system hold. Whether TLS is used says `sslmode` in the DSN.";

    "rate_limit.enabled" Bool, "false", Reload,
        "Limits calls to the user API, after authentication. Worker routes are not limited.";
    "rate_limit.requests_per_minute" Integer, "120", Reload,
        "Calls per minute that each caller may make in the long run.";
    "rate_limit.burst" Integer, "60", Reload,
        "Calls that a caller may make at once after a pause.";
    "rate_limit.key_by" Choice(&["owner", "api_key", "ip"]), "owner", Reload,
        "What counts as one caller: the owner that the request acts for, the key, or the address.";
    "rate_limit.bucket_ttl" Duration, "15m", Reload,
        "After so long without a call a caller is forgotten.";
    "rate_limit.cleanup_interval" Duration, "1m", Reload,
        "How often forgotten callers are removed from memory.";
    "rate_limit.failed_auth_per_minute" Integer, "30", Reload,
        "Failed authentications per address and minute before the answer is 429. It holds also when `rate_limit.enabled` is false. 0 means without limit.";

    "tenants.max_ready" Integer, "0", Reload,
        "Tasks of a tenant that may wait at a time, ready, scheduled or blocked. At the limit its submissions are refused.";
    "tenants.max_running" Integer, "0", Reload,
        "Tasks of a tenant that may run at a time. At the limit its submissions are refused; what waits already still runs.";
    "tenants.submits_per_second" Integer, "0", Reload,
        "Tasks that a tenant may submit per second. Bursts of ten seconds' worth pass.";
    "tenants.max_payload_bytes" super::Kind::Size, "0", Reload,
        "Bytes of all payloads of a tenant that wait or run, as a number or with a unit such as `64MiB`.";

    "retention.finished" Duration, "7d", Restart,
        "How long ended tasks are kept.";
    "retention.dead_letters" Duration, "30d", Restart,
        "How long dead letters are kept.";
    "retention.events" Duration, "1h", Restart,
        "How long facts can be replayed to those who watch.";
    "retention.max_finished" Integer, "10000000", Restart,
        "Ended tasks that are kept at most. What is younger than 10 minutes stays all the same: its report may be sent again.";

    "audit.retention" Duration, "30d", Restart,
        "How long the record of operations is kept. 0 keeps it for ever.";

    "logging.level" Choice(&["off", "error", "warn", "info", "debug", "trace"]), "info", Restart,
        "What is logged. The variable `TENURE_LOG` takes a filter in its place.";
    "logging.format" Choice(&["json", "pretty"]), "", Restart,
        "How it is logged. Without this key it is `json`, and `pretty` when somebody looks at it on a terminal.";
};
