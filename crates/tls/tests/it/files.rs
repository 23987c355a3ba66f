//! What is wrong with files is said at load, by name.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tenure_tls::{ClientAuth, ClientTls, Identity, Roots, RpcTls, ServerTls, TlsError, dev_certs};

use crate::stand::Certs;

fn write(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn identities_that_cannot_work_are_refused_with_the_file_and_the_reason() {
    let (certs, other) = (Certs::new(), Certs::new());
    let folder = certs.folder();
    let text = |name: &str| std::fs::read_to_string(certs.file(name)).unwrap();
    let cut = text("server.crt");
    let canary = "MC4CAQAwBQYDK2VwBCIEIHUNTER2";
    let mut expired = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    expired.not_after = date_time_ymd(1970, 1, 1) + (now - Duration::from_secs(60));
    let expired_key = KeyPair::generate().unwrap();
    write(folder, "old.crt", &expired.self_signed(&expired_key).unwrap().pem());
    write(folder, "old.key", &expired_key.serialize_pem());
    write(folder, "empty", "");
    write(folder, "prose", &format!("this is no PEM: {canary}"));
    write(folder, "cut.crt", &cut[..cut.len() - 60]);
    write(folder, "junk.crt", "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----\n");
    write(folder, "bad64.crt", &format!("-----BEGIN CERTIFICATE-----\n!!{canary}!!\n-----END CERTIFICATE-----\n"));
    write(folder, "junk.key", &format!("-----BEGIN PRIVATE KEY-----\n{canary}==\n-----END PRIVATE KEY-----\n"));
    let locked = format!("-----BEGIN ENCRYPTED PRIVATE KEY-----\n{canary}\n-----END ENCRYPTED PRIVATE KEY-----\n");
    write(folder, "locked.key", &locked);
    write(folder, "first.crt", include_str!("../version-1.crt"));
    std::fs::copy(other.file("server.key"), folder.join("other.key")).unwrap();
    let table = [
        ("missing.crt", "server.key", "cannot read the certificate", "missing.crt"),
        ("server.crt", "missing.key", "cannot read the private key", "missing.key"),
        ("empty", "server.key", "contains no certificate", "empty"),
        ("prose", "server.key", "contains no certificate", "prose"),
        ("server.key", "server.crt", "contains no certificate", "server.key"),
        ("cut.crt", "server.key", "broken PEM", "cut.crt"),
        ("junk.crt", "server.key", "broken PEM", "junk.crt"),
        ("bad64.crt", "server.key", "broken PEM", "bad64.crt"),
        ("server.crt", "server.crt", "contains no private key", "server.crt"),
        ("server.crt", "locked.key", "contains no private key", "locked.key"),
        ("server.crt", "junk.key", "cannot be used", "junk.key"),
        ("server.crt", "other.key", "does not belong to", "other.key"),
        ("old.crt", "old.key", "expired on", "old.crt"),
        ("first.crt", "server.key", "X.509 version 1", "first.crt"),
        ("first.crt", "server.key", "make a version 3 certificate, for example with `openssl x509 -req -extfile", ""),
    ];
    for (cert, key, why, named) in table {
        let error = Identity::load(&certs.file(cert), &certs.file(key)).expect_err(cert).to_string();
        assert!(error.contains(why) && error.contains(named), "{cert} {key}: {error}");
        assert!(!error.contains("HUNTER2"), "{error}");
    }
    Identity::load(&certs.file("server.crt"), &certs.file("server.key")).unwrap();
}

#[test]
fn ca_bundles_that_cannot_work_are_refused() {
    let certs = Certs::new();
    write(certs.folder(), "empty", "");
    for (file, why) in
        [("empty", "contains no certificate"), ("ca.key", "contains no certificate"), ("no", "cannot read")]
    {
        let error = Roots::File(certs.file(file)).load().expect_err(file).to_string();
        assert!(error.contains(why) && error.contains(file), "{error}");
    }
    assert_eq!(Roots::File(certs.file("ca.crt")).load().unwrap().len(), 1);
}

#[test]
fn client_certificates_and_their_ca_are_set_together() {
    let certs = Certs::new();
    let ca = || Some(certs.file("ca.crt"));
    for (client_auth, client_ca_file, why) in [
        (ClientAuth::Required, None, "client_ca_file is missing"),
        (ClientAuth::Optional, None, "client_ca_file is missing"),
        (ClientAuth::Off, ca(), "client_ca_file has no effect"),
    ] {
        let tls = ServerTls { client_auth, client_ca_file, ..certs.server() };
        let error = tls.load().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn rpc_settings_are_checked_at_start() {
    let certs = Certs::new();
    let file = |name: &str| Some(certs.file(name));
    let bad = Some(write(certs.folder(), "bad", "nothing"));
    let good = || RpcTls {
        enabled: true,
        server_cert_file: file("worker-w-1.crt"),
        server_key_file: file("worker-w-1.key"),
        client_ca_file: file("ca.crt"),
        ca_file: file("ca.crt"),
        client_cert_file: file("client.crt"),
        client_key_file: file("client.key"),
        ..RpcTls::default()
    };
    let half = "set both or neither";
    let table: Vec<(RpcTls, bool, Option<&str>)> = vec![
        (good(), true, None),
        (good(), false, None),
        (RpcTls { enabled: true, ca_file: file("ca.crt"), ..RpcTls::default() }, false, None),
        (
            RpcTls { enabled: true, ca_file: file("ca.crt"), ..RpcTls::default() },
            true,
            Some("server_cert_file is missing"),
        ),
        (RpcTls { enabled: false, server_cert_file: bad.clone(), ..good() }, true, None),
        (RpcTls { server_key_file: None, ..good() }, true, Some(half)),
        (RpcTls { server_cert_file: None, ..good() }, false, Some(half)),
        (RpcTls { client_key_file: None, ..good() }, false, Some(half)),
        (RpcTls { client_cert_file: None, ..good() }, true, Some(half)),
        (RpcTls { server_cert_file: bad.clone(), ..good() }, true, Some("contains no certificate")),
        (RpcTls { server_key_file: bad.clone(), ..good() }, true, Some("contains no private key")),
        (RpcTls { server_key_file: file("client.key"), ..good() }, true, Some("does not belong")),
        (RpcTls { client_ca_file: bad.clone(), ..good() }, true, Some("contains no certificate")),
        (RpcTls { ca_file: bad.clone(), ..good() }, false, Some("contains no certificate")),
        (RpcTls { ca_file: bad.clone(), ..good() }, true, Some("contains no certificate")),
        (RpcTls { ca_file: bad.clone(), insecure_skip_verify: true, ..good() }, false, Some("contains no certificate")),
        (RpcTls { client_cert_file: bad, ..good() }, false, Some("contains no certificate")),
        (RpcTls { server_name: Some("not a name".into()), ..good() }, false, Some("correct server_name")),
        (
            RpcTls { client_ca_file: None, allowed_client_names: vec!["cp".into()], ..good() },
            true,
            Some("client_ca_file is missing"),
        ),
    ];
    for (n, (settings, listening, expected)) in table.into_iter().enumerate() {
        let error = settings.check(listening).err().map(|error| error.to_string());
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) if error.contains(expected) => {}
            _ => panic!("case {n}: expected {expected:?}, got {error:?}"),
        }
    }
    assert_eq!(good().server().unwrap().client_auth, ClientAuth::Required);
    let open = RpcTls { client_ca_file: None, ..good() };
    assert_eq!(open.server().unwrap().client_auth, ClientAuth::Off);
}

#[test]
fn half_a_client_pair_is_refused() {
    let certs = Certs::new();
    let tls = ClientTls { client_key_file: None, ..certs.control_plane() };
    let error = tls.load().unwrap_err().to_string();
    assert_eq!(error, "client_cert_file is set without client_key_file: set both or neither");
}

#[test]
fn dev_certs_keep_keys_private_and_overwrite_nothing() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("new/certs");
    let made = dev_certs(&dir, &["cp.example".to_owned(), "10.0.0.5".to_owned()], &["w-1".to_owned()]).unwrap();
    let names: Vec<_> = made.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    let expected = [
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
        "client.crt",
        "client.key",
        "worker-w-1.crt",
        "worker-w-1.key",
    ];
    assert_eq!(names, expected);
    for path in &made {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("# Created by `tenure dev-certs`"), "{}", path.display());
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let is_key = path.extension().unwrap() == "key";
        assert!(!is_key || mode == 0o600, "{}: {mode:o}", path.display());
    }
    let before = std::fs::read(dir.join("ca.key")).unwrap();
    assert!(matches!(dev_certs(&dir, &[], &[]), Err(TlsError::Exists { .. })));
    std::fs::remove_file(dir.join("ca.crt")).unwrap();
    assert!(matches!(dev_certs(&dir, &[], &[]), Err(TlsError::Exists { .. })));
    assert_eq!(std::fs::read(dir.join("ca.key")).unwrap(), before);
    assert!(!dir.join("ca.crt").exists(), "half of it was made");
}

#[test]
fn dev_certs_take_no_worker_id_that_is_no_file_name() {
    let folder = TempDir::new().unwrap();
    for id in ["", "a/b", "../x", ".hidden", "a b", "localhost", "ü"] {
        let result = dev_certs(folder.path(), &[], &[id.to_owned()]);
        assert!(matches!(result, Err(TlsError::WorkerId { .. })), "{id:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn dev_certs_are_valid_for_thirty_days() {
    let certs = Certs::new();
    let identity = Identity::load(&certs.file("server.crt"), &certs.file("server.key")).unwrap();
    let (_, cert) = x509_parser::parse_x509_certificate(&identity.chain()[0]).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let left = cert.validity().not_after.timestamp() - now;
    assert!((29 * 86_400..=30 * 86_400).contains(&left), "{left}");
}
