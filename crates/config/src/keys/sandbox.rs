use super::Kind::{Bool, Choice, Duration, FileMap, Integer, Number, SecretMap, Size, Text, TextMap, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "worker.listen_addr" Text, "", Restart,
        "Address and port for worker RPC, such as `127.0.0.1:7430`. If unset, the worker serves no RPC and holds no sandboxes for a control plane.";
    "worker.metrics_addr" Text, "", Restart,
        "Address and port where `tenure worker` serves its metrics at `/metrics`, without authentication, such as `127.0.0.1:7431`. If unset, they are not served.";
    "worker.advertise_url" Text, "", Restart,
        "Address where the control plane reaches this worker. Default: the listen address if its host is specific, else the host name with the same port.";
    "worker.preview_domain" Text, "", Restart,
        "Domain below which ports of this worker's sandboxes can be reached.";
    "worker.heartbeat_interval" Duration, "30s", Restart,
        "Time between heartbeats, varied by up to a tenth.";
    "worker.shutdown_timeout" Duration, "10s", Restart,
        "How long calls may take to end when the worker stops.";
    "worker.data_dir" Text, "", Restart,
        "Folder with what the worker holds: fences, runtimes, images. One worker per folder. Default: `worker` in the data folder.";
    "worker.spawn_timeout" Duration, "2m", Restart,
        "Maximum time for creating a sandbox.";
    "worker.lease_grace" Duration, "5m", Restart,
        "How long a sandbox whose lease lapsed stays frozen before it is destroyed.";
    "worker.capacity.max_sandboxes" Integer, "0", Restart,
        "Maximum number of sandboxes at a time. 0 means no limit.";
    "worker.capacity.memory_mb" Integer, "0", Restart,
        "Megabytes of memory that this worker offers. 0 means what the machine has.";
    "worker.capacity.vcpus" Integer, "0", Restart,
        "Number of processors that this worker offers. 0 means what the machine has.";

    "worker.local" Bool, "false", Restart,
        "Runs a worker named `local` inside the control plane, which then holds sandboxes without another process. Always on with `tenure up`.";

    "defaults.ttl" Duration, "30m", Reload,
        "Lifetime of a sandbox whose request names none. Never longer than `defaults.max_ttl`.";
    "defaults.image" Text, "alpine:latest", Reload,
        "Image of a sandbox whose request names none.";
    "defaults.memory_mb" Integer, "1024", Reload,
        "Megabytes of memory of a sandbox whose request names none. 0 leaves it to the provider.";
    "defaults.vcpus" Integer, "1", Reload,
        "Number of processors of a sandbox whose request names none. 0 leaves it to the provider.";
    "defaults.disk_size_mb" Integer, "1024", Reload,
        "Megabytes that a sandbox may write, if its request names no size. 0 leaves it to the provider.";
    "defaults.pool_size" Integer, "0", Reload,
        "Number of sandboxes kept ready for the next request, from 0 to 1000.";
    "defaults.pool_template" Text, "", Reload,
        "Template of the sandboxes kept ready. If unset, they are made from the defaults.";
    "defaults.max_ttl" Duration, "24h", Reload,
        "Longest lifetime of a sandbox, extensions included. 0 means no limit.";
    "defaults.max_sandboxes" Integer, "0", Reload,
        "Maximum number of sandboxes at a time. 0 means no limit.";
    "defaults.max_sandboxes_per_owner" Integer, "0", Reload,
        "Maximum number of sandboxes of one owner at a time. A quota of the owner takes precedence. 0 means no limit.";
    "defaults.spawn_overflow" Choice(&["reject", "queue"]), "reject", Reload,
        "What happens to a request beyond these limits: it is rejected, or waits in a queue.";
    "defaults.spawn_queue_timeout" Duration, "30s", Reload,
        "How long a request waits in the queue before it is rejected.";
    "defaults.max_spawn_queue" Integer, "100", Reload,
        "Maximum number of waiting requests. 0 means no limit.";
    "defaults.default_exec_timeout" Duration, "0s", Reload,
        "Time limit of a command in a sandbox that names none. 0 means the maximum.";
    "defaults.max_exec_timeout" Duration, "10m", Reload,
        "Longest time limit of a command in a sandbox.";

    "templates.secrets" SecretMap, "", Reload,
        "Secrets that templates of sandboxes can name, by name. A name such as `acme/token` is for templates of the tenant `acme`, which call it `token`; a plain name is for those of `default`.";
    "templates.secret_files" FileMap, "", Reload,
        "The same, with each secret in a file.";

    "leases.ttl" Duration, "60s", Reload,
        "How long a worker holds a sandbox without renewing its lease, 15s or more. Workers renew after a third of it.";
    "leases.max_ttl" Duration, "5m", Reload,
        "Longest time for which a worker may renew a lease. Must not be shorter than `leases.ttl`; the default grows with it.";

    "scheduler.freshness" Duration, "2m", Reload,
        "A worker without a heartbeat for longer gets no new sandboxes, and its sandboxes are unhealthy.";
    "scheduler.weights.memory" Number, "0.5", Reload,
        "Weight of the share of memory in use, when a worker is chosen.";
    "scheduler.weights.vcpus" Number, "0.3", Reload,
        "Weight of the share of processors in use.";
    "scheduler.weights.count" Number, "0.2", Reload,
        "Weight of the share of sandboxes in use.";

    "providers.default" Text, "namespace", Restart,
        "Provider of sandboxes whose request names none: `namespace`, `docker` or `process`.";
    "providers.namespace.enabled" Bool, "true", Restart,
        "Runs sandboxes in Linux namespaces.";
    "providers.namespace.data_dir" Text, "", Restart,
        "Folder with the state of the sandboxes and with the images. Default: `namespace` in the worker's data folder.";
    "providers.namespace.image_aliases" TextMap, "", Restart,
        "Names that resolve to another image, such as `\"python:3\": host`; `*` matches every other name. Default: `alpine:latest` resolves to `host`.";
    "providers.namespace.pids_limit" Integer, "256", Restart,
        "Maximum number of processes and threads of a sandbox.";
    "providers.namespace.max_memory_mb" Integer, "8192", Restart,
        "Most memory that a sandbox may ask for, in megabytes.";
    "providers.namespace.max_vcpus" Integer, "8", Restart,
        "Most processors that a sandbox may ask for.";
    "providers.namespace.disk_mb" Integer, "1024", Restart,
        "Size of the writable layer of a sandbox that names none, in megabytes.";
    "providers.namespace.egress" Choice(&["deny", "allow_list"]), "deny", Restart,
        "Whether a sandbox may ask for hosts that it can reach (`allow_list`), or for none (`deny`).";
    "providers.namespace.seccomp" Choice(&["default", "off"]), "default", Restart,
        "Filter of system calls. `off` is for finding out whether the filter is the cause of a problem.";
    "providers.process.enabled" Bool, "false", Restart,
        "Runs sandboxes as plain processes, without any isolation. For development.";
    "providers.docker.enabled" Bool, "false", Restart,
        "Runs sandboxes as containers of a Docker-compatible daemon.";
    "providers.docker.socket" Text, "", Restart,
        "Socket of the daemon. Default: `DOCKER_HOST`, or `/var/run/docker.sock`.";
    "providers.docker.runtime" Text, "runc", Restart,
        "Runtime of the containers, as the daemon knows it.";
    "providers.docker.default_image" Text, "alpine:latest", Restart,
        "Image of a sandbox whose request names none.";
    "providers.docker.network_mode" Text, "none", Restart,
        "Network of the containers.";
    "providers.docker.seccomp_profile" Text, "default", Restart,
        "Filter of system calls: `default`, `unconfined`, or a file.";
    "providers.docker.read_only_rootfs" Bool, "false", Restart,
        "Makes everything but `/workspace` and `/tmp` read-only.";
    "providers.docker.memory" Size, "512MiB", Restart,
        "Memory of a sandbox that names none.";
    "providers.docker.cpus" Text, "1", Restart,
        "Processors of a sandbox that names none, such as `0.5`.";
    "providers.docker.max_memory_mb" Integer, "8192", Restart,
        "Most memory that a sandbox may ask for, in megabytes.";
    "providers.docker.max_vcpus" Integer, "8", Restart,
        "Most processors that a sandbox may ask for.";
    "providers.docker.pids_limit" Integer, "256", Restart,
        "Maximum number of processes and threads of a container.";
    "providers.docker.user" Text, "", Restart,
        "User inside the container, such as `1000:1000`. Default: that of the image.";
    "providers.docker.dropped_caps" Texts, "", Restart,
        "Capabilities that containers lose. Default: `ALL`.";
    "providers.docker.added_caps" Texts, "", Restart,
        "Capabilities that containers get back.";
    "providers.docker.tmpfs" TextMap, "", Restart,
        "Folders in memory, with their options.";
};
