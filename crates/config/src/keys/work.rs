use super::Kind::{
    Bool, Choice, Dsn, Duration, File, FileMap, Files, Integer, Secret, SecretMap, Size, Text, TextMap, Texts,
};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "tokens.issuer" Text, "tenure", Restart,
        "Issuer (`iss`) of the tokens that the control plane signs for tasks.";
    "dispatch.capability.key_file" File, "", Reload,
        "P-256 private key, in PEM, that signs capability tokens and task tokens. If unset, the first start creates one in the data folder.";
    "dispatch.capability.previous_key_files" Files, "", Reload,
        "Previous signing keys. They only verify, and can be removed after 24 hours.";
    "dispatch.capability.verify_key_files" Files, "", Reload,
        "Further keys that only verify: previous ones, or the next ones, so that every control plane knows a key before one of them signs with it. A public key is enough.";
    "dispatch.internal_listen" Text, "", Restart,
        "Address and port of a listener of its own for the dispatch contract (`/internal/task-*`, `/internal/heartbeat`, `/internal/events`, `/v1/task/*`), such as `10.0.0.5:7424`. The public listener then does not serve it. Other than loopback addresses need a worker credential. TLS is that of the server.";
    "dispatch.object_store.url" Text, "", Restart,
        "Where outputs of tasks are kept: `s3://bucket/`, `s3://bucket/prefix/`, or `file:///path` for a local folder. If unset, the folder `objects` in the data folder. Credentials for S3 come from the environment, as for the AWS CLI.";
    "dispatch.object_store.endpoint_url" Text, "", Restart,
        "Address of S3, if not that of the region: a VPC endpoint, or a compatible server.";
    "dispatch.object_store.region" Text, "", Restart,
        "Region of the bucket. If unset, that of the environment.";
    "dispatch.object_store.path_style" Bool, "false", Restart,
        "Puts the bucket into the path of requests instead of the host name. Most compatible servers need it.";
    "dispatch.object_store.allow_file" Bool, "true", Restart,
        "With a local folder: names outputs `file:///...`, for workers that see the same files. If false, the folder is the bucket `tenure`. Without effect with S3.";
    "dispatch.s3.listen" Text, "", Restart,
        "Address and port of a listener of its own for the S3 endpoint, such as `10.0.0.5:7425`. Without it the endpoint is on the listener of `/v1/task/*`, below `/tenure`. Only with a local folder as object store. TLS is that of the server.";
    "dispatch.s3.endpoint_url" Text, "", Restart,
        "Address of the S3 endpoint that tasks are told, such as `https://tenure.example`. If unset, the one that they asked for keys at, or that of `dispatch.s3.listen`.";
    "dispatch.sts.role_arn" Text, "", Restart,
        "With S3: the role that temporary keys of tasks are of, such as `arn:aws:iam::123456789012:role/tenure-tasks`. Each task gets keys that may do less, by a session policy. If unset, tasks get no keys.";
    "dispatch.sts.region" Text, "", Restart,
        "Region of STS. If unset, that of the bucket, then that of the environment. Credentials come from the environment, as for the AWS CLI.";
    "dispatch.sts.endpoint_url" Text, "", Restart,
        "Address of STS, if not that of the region: a VPC endpoint, or a compatible server.";
    "dispatch.data_store.url" Dsn, "", Restart,
        "Postgres that keeps the rows of buffered datasets, in the schema `tenure_data`: `postgres://user:password@host/database`. If unset, the Postgres of `database.dsn`, or with SQLite the file `data.db` in the data folder.";
    "dispatch.data_store.read_url" Dsn, "", Restart,
        "The same Postgres with a role that can only read `tenure_data`, for those who read rows. If unset, they begin read-only transactions.";
    "dispatch.runtimes" Texts, "", Restart,
        "Further names that jobs may have as `runtime`. Each is like `worker`. `ecs_rust` and `ecs_python` are always known.";
    "dispatch.lambda.functions" TextMap, "", Restart,
        "Which function on AWS Lambda runs an operator of `runtime: lambda`: its name or ARN. The first of `{operator}.{language}`, `{operator}`, `udf.{language}` and `*` is used; the language, `node` or `python`, is that of a bundle.";
    "dispatch.lambda.region" Text, "", Restart,
        "Region of the functions. If unset, that of the environment. Credentials come from the environment, as for the AWS CLI.";
    "dispatch.lambda.endpoint_url" Text, "", Restart,
        "Address of Lambda, if not that of the region: a VPC endpoint, or a compatible server.";
    "dispatch.write_prefixes" Texts, "", Restart,
        "Further prefixes that tasks may write and commit, with `{task_id}`, `{attempt}`, `{dag}`, `{job}` and `{dataset_uuid}` in them. One without `{task_id}` is granted only to jobs with `runtime: worker`.";
    "dispatch.staging_retention" Duration, "7d", Restart,
        "How long staged outputs and scratch folders that nobody has committed are kept, from 1h to 365d. Committed data is never removed.";
    "dispatch.secrets" SecretMap, "", Reload,
        "Secrets that webhook sources name in `source.secret`, by name. A name such as `acme/hook_key` is for DAGs of the tenant `acme`, a plain name for those of all tenants that have none of their own.";
    "dispatch.secret_files" FileMap, "", Reload,
        "The same, with each secret in a file.";
    "dispatch.queue_names" TextMap, "", Restart,
        "Names of the Redis streams or SQS queues for wake-ups of jobs, by `worker`, `worker.{pool}` and `sandbox`. They are used as they are, without `redis.key_prefix` and `sqs.queue_prefix`. By default the same names, with `_` for `.` on SQS.";
    "dispatch.rewake_after" Duration, "60s", Restart,
        "How long a task of a job waits before a wake-up is sent for it again, from 1s to 1h.";
    "dispatch.retry_backoff" Duration, "30s", Restart,
        "How long a task of a job waits after its first attempt has failed or expired, half of it to one and a half; twice as long after each further one. 0s: not at all.";
    "dispatch.retry_backoff_max" Duration, "10m", Restart,
        "The most that this wait grows to.";
    "query.enabled" Bool, "true", Restart,
        "Starts a query process beside the server, if the program is there, and starts it again when it ends. Without effect with `query.endpoint`.";
    "query.binary" File, "", Restart,
        "The query process. If unset, `tenure-query` in the folder of `tenure`, or in `PATH`.";
    "query.endpoint" Texts, "", Restart,
        "Query processes that run elsewhere, in place of one beside the server: `unix:/path` or `http://host:port`. They must see the same object store, and the file of the data store if that is SQLite. TCP is not encrypted: use it in a private network only.";
    "query.token" Secret, "", Restart,
        "The token of `tenure-query --token-file`, for `query.endpoint` over TCP.";
    "query.token_file" File, "", Restart,
        "File with `query.token`.";
    "query.at_once" Integer, "4", Restart,
        "Queries that run at once in the process beside the server.";
    "query.waiting" Integer, "16", Restart,
        "Queries that wait there beyond those that run. More are refused with `query_busy`.";
    "query.memory" Size, "512MiB", Restart,
        "Memory of one query. What does not fit goes to disk where possible.";
    "query.user_timeout" Duration, "60s", Restart,
        "The longest that a query of a user may take, up to 1h.";
    "query.task_timeout" Duration, "300s", Restart,
        "The longest that a query of a task may take, up to 1h.";
    "query.per_minute" Integer, "10", Restart,
        "Queries per minute of an API key. 0 means no limit.";

    "callback.shared_secret" Secret, "", Reload,
        "Secret of 32 bytes or more for task tokens signed with HS256, for older callback workers. If unset, ES256 is used.";
    "callback.shared_secret_file" File, "", Reload,
        "File with `callback.shared_secret`.";
    "callback.base_url" Text, "", Reload,
        "Address where callback workers reach this control plane, such as `https://tenure.example`; sent with every push. If unset, tasks can be pushed only in dev mode, with the address that the server listens on.";

    "push.secrets" SecretMap, "", Reload,
        "Secrets that queues name in `push.secret_ref`, by name. They are sent to the worker as `X-Tenure-Dispatch-Secret`, or in the headers of `push.secret_header` of the queue. A name such as `acme/etl` is for queues of the tenant `acme`, a plain name for those of `default`. Admins of all tenants may use any name.";
    "push.secret_files" FileMap, "", Reload,
        "The same, with each secret in a file.";
    "push.mtls.cert_files" FileMap, "", Reload,
        "Client certificate chains (PEM) for pushes, by the name that queues use in `push.mtls_ref`. Names are as in `push.secrets`.";
    "push.mtls.key_files" FileMap, "", Reload,
        "Private keys of these certificates, by the same names.";
    "push.mtls.ca_files" FileMap, "", Reload,
        "CA certificates for verifying workers, by the same names. Default: those of the system. A name may have CA certificates without a client certificate.";
    "push.allow_cidrs" Texts, "", Reload,
        "Private networks, such as `10.1.0.0/16`, that tasks may be pushed to. Public addresses are always allowed, link-local and metadata addresses never.";
    "push.allow_http" Bool, "false", Reload,
        "Allows pushes without TLS.";
    "push.max_in_flight" Integer, "1024", Restart,
        "Maximum number of pushes of this control plane that wait for an answer at once, over all queues. No queue takes more of them than it leaves free, so a target that does not answer never takes all.";

    "outbound.allow_cidrs" Texts, "", Restart,
        "Private networks, such as `10.1.0.0/16`, that outbound calls may reach. Public addresses are always allowed, link-local and metadata addresses never.";
    "outbound.allow_http" Bool, "false", Restart,
        "Allows outbound calls without TLS.";

    "worker.id" Text, "", Restart,
        "Worker id. If unset, each process generates one; a worker that serves RPC uses the host name.";
    "worker.control_plane_url" Text, "http://localhost:7423", Restart,
        "Address of the control plane.";
    "worker.operators" TextMap, "", Restart,
        "Shell commands that run tasks of an operator, by its name.";
    "worker.sandbox.image" Text, "", Restart,
        "Runs every command of `worker.operators` in a fresh sandbox of this image; `host` has the programs of this machine. The flag `--sandbox` sets it.";
    "worker.sandbox.limits" Text, "", Restart,
        "Limits of those sandboxes, such as `memory=256m cpus=1 pids=64 disk=1g timeout=30s allow=example.com,*.example.org mount=/srv/data:/data:ro`.";
    "worker.sandbox.operators" TextMap, "", Restart,
        "Sandboxes of individual operators, by the operator's name, such as `image=etl memory=1g timeout=10m`. What is not named is taken from `worker.sandbox.image` and `worker.sandbox.limits`. An operator that is listed here runs in a sandbox also if `worker.sandbox.image` is not set.";
    "worker.sandbox.provider" Choice(&["namespace", "process", "docker"]), "namespace", Restart,
        "What makes those sandboxes. `process` does not isolate: for development only.";
    "worker.sandbox.warm" Integer, "1", Restart,
        "Sandboxes kept ready for each kind of sandbox, from 0 to 64. Each is used by one task.";
    "worker.rpc_tls.enabled" Bool, "false", Restart,
        "Enables TLS for worker RPC.";
    "worker.rpc_tls.server_cert_file" File, "", Reload,
        "Worker: its certificate chain, in PEM.";
    "worker.rpc_tls.server_key_file" File, "", Reload,
        "Worker: the private key of its certificate.";
    "worker.rpc_tls.client_ca_file" File, "", Reload,
        "Worker: CA certificates for verifying the control plane. If set, the control plane must present a certificate.";
    "worker.rpc_tls.allowed_client_names" Texts, "", Reload,
        "Worker: accepted names in the certificate of the control plane. If empty, any name is accepted.";
    "worker.rpc_tls.ca_file" File, "", Reload,
        "Control plane: CA certificates for verifying workers.";
    "worker.rpc_tls.client_cert_file" File, "", Reload,
        "Control plane: its certificate chain, in PEM.";
    "worker.rpc_tls.client_key_file" File, "", Reload,
        "Control plane: the private key of its certificate.";
    "worker.rpc_tls.server_name" Text, "", Reload,
        "Control plane: name in the certificates of workers, if not the host of their address.";
    "worker.rpc_tls.server_names" TextMap, "", Reload,
        "Control plane: the same for individual workers, by worker id.";
    "worker.rpc_tls.bind_worker_id" Choice(&["off", "warn", "require"]), "off", Restart,
        "Control plane: whether the certificate must contain the worker id, as URI `tenure://worker/ID` or as first label of a DNS name.";
    "worker.rpc_tls.insecure_skip_verify" Bool, "false", Restart,
        "Control plane: skips the verification of worker certificates. For throwaway tests only.";
};
