//! `tenure dev-certs`

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use tenure_testkit::Tenure;

#[tokio::test]
async fn certificates_are_made_once_and_their_use_is_explained() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("certs");
    let dir = dir.to_str().unwrap();
    let made = Tenure::run_to_end(&["dev-certs", dir, "--name", "cp.example", "--worker", "w-1"]).await;
    assert!(made.status.is_some_and(|status| status.success()), "{}", made.stderr);
    for name in ["ca", "server", "client", "worker-w-1"] {
        for extension in ["crt", "key"] {
            let path = format!("{dir}/{name}.{extension}");
            assert!(made.stdout.contains(&path), "{}", made.stdout);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert!(extension == "crt" || mode == 0o600, "{path}: {mode:o}");
        }
    }
    for text in ["30 days", "cert_file:", "sslrootcert=", "bind_worker_id: require", "Throwaway"] {
        assert!(made.stdout.contains(text), "{text} is missing in {}", made.stdout);
    }
    let key = std::fs::read(format!("{dir}/ca.key")).unwrap();
    let again = Tenure::run_to_end(&["dev-certs", dir]).await;
    assert_eq!(again.status.and_then(|status| status.code()), Some(2));
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert_eq!(std::fs::read(format!("{dir}/ca.key")).unwrap(), key);
    let odd = Tenure::run_to_end(&["dev-certs", dir, "--worker", "../x"]).await;
    assert_eq!(odd.status.and_then(|status| status.code()), Some(2));
}
