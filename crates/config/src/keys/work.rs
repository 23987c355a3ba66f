use super::Kind::{Bool, Choice, File, FileMap, Files, Integer, Secret, SecretMap, Text, TextMap, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "tokens.issuer" Text, "tenure", Restart,
        "Issuer (`iss`) of the tokens that the control plane signs for tasks.";
    "dispatch.capability.key_file" File, "", Reload,
        "P-256 private key, in PEM, that signs capability tokens and task tokens. Without it one is made in the data folder at the first start.";
    "dispatch.capability.previous_key_files" Files, "", Reload,
        "Keys that signed before. They verify and never sign, and may go once 24 hours have passed.";
    "callback.shared_secret" Secret, "", Reload,
        "Secret of 32 bytes or more for task tokens signed with HS256, for older callback workers. Without it ES256 is used.";
    "callback.shared_secret_file" File, "", Reload,
        "File that holds `callback.shared_secret`.";
    "callback.base_url" Text, "", Reload,
        "Address at which workers of the callback contract reach this control plane, such as `https://tenure.example`. Envelopes carry it. Without it tasks can be pushed in dev mode only, with the address that is listened on.";

    "push.secrets" SecretMap, "", Reload,
        "Secrets that queues name in `push.secret_ref`, by name. They are sent to the worker as `X-Tenure-Dispatch-Secret`. A name such as `acme/etl` is for queues of the tenant `acme`, a plain name for those of `default`; whoever reaches every tenant may name all.";
    "push.secret_files" FileMap, "", Reload,
        "The same, from files: each holds the secret of its name.";
    "push.mtls.cert_files" FileMap, "", Reload,
        "Certificate chains, in PEM, that are shown to workers, by the name that queues give in `push.mtls_ref`. Names are as in `push.secrets`.";
    "push.mtls.key_files" FileMap, "", Reload,
        "Private keys of these certificates, by the same names.";
    "push.mtls.ca_files" FileMap, "", Reload,
        "Roots for the certificates of workers, by the same names. Without an entry those of the system hold. A name may have roots and no certificate.";
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
        "Name of the worker. Without it each process takes one of its own.";
    "worker.control_plane_url" Text, "http://localhost:7423", Restart,
        "Where the worker finds the control plane.";
    "worker.operators" TextMap, "", Restart,
        "Shell commands that run tasks of an operator, by its name.";
    "worker.rpc_tls.enabled" Bool, "false", Restart,
        "Turns TLS on for worker RPC. The block is loaded and checked; there is no worker RPC yet that uses it.";
    "worker.rpc_tls.server_cert_file" File, "", Reload,
        "Worker: its certificate chain, in PEM.";
    "worker.rpc_tls.server_key_file" File, "", Reload,
        "Worker: the private key of its certificate.";
    "worker.rpc_tls.client_ca_file" File, "", Reload,
        "Worker: roots for the certificate of the control plane. When set, one is required.";
    "worker.rpc_tls.allowed_client_names" Texts, "", Reload,
        "Worker: names that the certificate of the control plane may carry. Without any, all under the roots.";
    "worker.rpc_tls.ca_file" File, "", Reload,
        "Control plane: roots for the certificates of workers.";
    "worker.rpc_tls.client_cert_file" File, "", Reload,
        "Control plane: its certificate chain, in PEM.";
    "worker.rpc_tls.client_key_file" File, "", Reload,
        "Control plane: the private key of its certificate.";
    "worker.rpc_tls.server_name" Text, "", Reload,
        "Control plane: name that the certificate of a worker carries, where it is not the host of its address.";
    "worker.rpc_tls.server_names" TextMap, "", Reload,
        "Control plane: the same for single workers, by worker id.";
    "worker.rpc_tls.bind_worker_id" Choice(&["off", "warn", "require"]), "off", Restart,
        "Control plane: whether the certificate has to name the worker id, as URI `tenure://worker/ID` or as first label of a DNS name.";
    "worker.rpc_tls.insecure_skip_verify" Bool, "false", Restart,
        "Control plane: does not check certificates of workers. For throwaway tests only.";
};
