use super::Kind::{Bool, Choice, Dsn, Duration, File, Integer, Size, Text, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "compat" Choice(&["stacyvm"]), "", Restart,
        "Profile for existing installations. `stacyvm` accepts the names of StacyVM and changes some defaults: see *The profile stacyvm* in docs/CONFIGURATION.md.";

    "server.host" Text, "127.0.0.1", Restart,
        "Address or host name to listen on. Other than loopback addresses need `auth.enabled` and a worker credential. The flag `--listen` sets it together with the port.";
    "server.port" Integer, "7423", Restart,
        "Port to listen on. 0 picks a free port.";
    "server.tls.cert_file" File, "", Reload,
        "Certificate chain in PEM, the server's own first. Set it together with the key to enable TLS.";
    "server.tls.key_file" File, "", Reload,
        "Private key of the certificate, in PEM.";
    "server.tls.client_ca_file" File, "", Reload,
        "CA certificates (PEM) for verifying client certificates.";
    "server.tls.client_auth" Choice(&["off", "optional", "required"]), "off", Reload,
        "Whether clients present a certificate. With `server.tls.client_ca_file` the default is `required`.";
    "server.cors_allowed_origins" Texts, "", Reload,
        "Origins whose pages may call the API from a browser: `https://console.example.com`, or `*` for all.";
    "server.allowed_hosts" Texts, "", Reload,
        "Host names, without a port, by which a server without keys may be called, beside `localhost` and loopback addresses. Others are refused, so that a web page cannot call it by a name that resolves to a loopback address. Not used if `auth.enabled` is true.";
    "server.preview_domain" Text, "", Reload,
        "Domain below which ports of sandboxes can be reached, as `http://PORT-SANDBOX.DOMAIN`. It may have a port. Default: `localhost` with the port of the server.";
    "server.preview_ports" Text, "1024-65535", Reload,
        "Ports of sandboxes that the preview and the proxy may reach: ports and ranges, separated by commas.";
    "server.preview_auth" Choice(&["key", "none"]), "key", Reload,
        "Whether preview hosts require a key. With `none`, everyone who knows the name of a sandbox reaches its ports.";
    "server.max_connections" Integer, "10000", Restart,
        "Maximum number of open connections. More wait in the backlog of the operating system.";
    "server.max_connections_per_address" Integer, "", Restart,
        "Maximum number of open connections of one address, or of one /64 network of IPv6. More are closed at once. Default: half of `server.max_connections`. Addresses in `server.trusted_proxies` have no such limit.";
    "server.write_timeout" Duration, "60s", Restart,
        "A client that reads nothing of what is sent to it for this long is disconnected. Long polls and event streams are not affected: nothing waits to be sent there.";
    "server.request_memory" Size, "128MiB", Restart,
        "Memory for bodies of requests and for pages of answers, all together. A tenant gets half at most. A request that finds no memory waits for up to 10 s, then the answer is 503 with `Retry-After`. A body takes twice its size, an object on its way through the S3 endpoint 1 MiB, the upload of a bundle 8 MiB. Routes of sandboxes have 512 MiB of their own.";
    "server.trusted_proxies" Texts, "", Reload,
        "Networks, such as `10.0.0.0/8`, whose `X-Forwarded-For` header is trusted. If empty, the address of the connection is used.";

    "database.driver" Choice(&["sqlite", "postgres"]), "sqlite", Restart,
        "Type of the store. SQLite serves one control plane, Postgres any number.";
    "database.path" Text, "tenure.db", Restart,
        "File of the SQLite store. A relative path is relative to the data folder.";
    "database.dsn" Dsn, "", Restart,
        "Postgres address: `postgres://user:password@host/database?sslmode=verify-full`. The flag `--store` and the variable `TENURE_STORE` also set it.";
    "database.tls.ca_file" File, "", Restart,
        "CA certificates (PEM) for verifying Postgres. Default: those of the system. `sslmode` in the DSN decides whether TLS is used.";

    "rate_limit.enabled" Bool, "false", Reload,
        "Limits calls to the user API, after authentication. Worker routes are not limited.";
    "rate_limit.requests_per_minute" Integer, "120", Reload,
        "Sustained number of calls per minute and caller.";
    "rate_limit.burst" Integer, "60", Reload,
        "Number of calls that a caller may make at once after a pause.";
    "rate_limit.key_by" Choice(&["owner", "api_key", "ip"]), "owner", Reload,
        "What counts as one caller: the owner that the request acts for, the key, or the address.";
    "rate_limit.bucket_ttl" Duration, "15m", Reload,
        "How long a caller is remembered after its last call.";
    "rate_limit.cleanup_interval" Duration, "1m", Reload,
        "How often forgotten callers are removed from memory.";
    "rate_limit.failed_auth_per_minute" Integer, "30", Reload,
        "Failed authentications per address and minute before the answer is 429. Applies even if `rate_limit.enabled` is false. 0 means no limit.";

    "tenants.max_ready" Integer, "0", Reload,
        "Maximum number of waiting tasks of a tenant (ready, scheduled or blocked). Beyond it, submits are refused.";
    "tenants.max_running" Integer, "0", Reload,
        "Maximum number of running tasks of a tenant. Beyond it, submits are refused; waiting tasks still run.";
    "tenants.submits_per_second" Integer, "0", Reload,
        "Maximum number of tasks that a tenant may submit per second. Allows bursts of ten times that.";
    "tenants.max_payload_bytes" Size, "0", Reload,
        "Maximum total size of the payloads of a tenant's waiting and running tasks, as a number or with a unit such as `64MiB`.";

    "retention.finished" Duration, "7d", Reload,
        "How long ended tasks are kept.";
    "retention.dead_letters" Duration, "30d", Reload,
        "How long dead letters are kept.";
    "retention.events" Duration, "1h", Reload,
        "How long events can be replayed.";
    "retention.task_logs" Duration, "3d", Reload,
        "How long logs of tasks are kept, at most as long as their task.";
    "retention.max_finished" Integer, "10000000", Reload,
        "Maximum number of ended tasks to keep. Tasks that ended less than 10 minutes ago are always kept, because their reports may be repeated.";

    "audit.retention" Duration, "30d", Restart,
        "How long the audit log of operations is kept. 0 keeps it forever.";
    "audit.commands" Choice(&["full", "hash"]), "full", Reload,
        "How commands that run in sandboxes are logged: in full, or only as a SHA-256 digest.";

    "metrics.legacy_names" Bool, "false", Reload,
        "Exports the metrics of sandboxes also under the names of StacyVM.";

    "logging.level" Choice(&["off", "error", "warn", "info", "debug", "trace"]), "info", Reload,
        "Log level. The variable `TENURE_LOG` overrides it with a filter.";
    "logging.access" Bool, "false", Reload,
        "Whether the server logs a line for each request: method, route, status, duration and request id.";
    "logging.format" Choice(&["json", "pretty"]), "", Restart,
        "Log format. Default: `pretty` on a terminal, otherwise `json`.";
};
