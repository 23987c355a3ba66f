//! TLS, with a CA of one's own.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tenure_testkit::Redis;
use tenure_transport::Transport;
use tenure_transport::redis::{RedisConfig, RedisTransport};

use crate::stand::{SOON, publish, queue, wake};

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, pem: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, pem).unwrap();
    path
}

fn transport(url: String, ca_file: Option<PathBuf>) -> RedisTransport {
    RedisTransport::new(RedisConfig { url, ca_file, prefix: "t:".to_owned(), ..RedisConfig::default() }).unwrap()
}

#[tokio::test]
async fn only_a_trusted_certificate_for_the_right_name_is_accepted() {
    let (ours, other) = (authority("ours"), authority("another"));
    let server = Redis::start_with(|folder, port| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ours).unwrap();
        let certificate = write(folder, "redis.crt", &certificate.pem());
        let key = write(folder, "redis.key", &key.serialize_pem());
        let authority = write(folder, "ca.crt", &ours.pem());
        let mut settings = ["--port", "0", "--tls-port"].map(str::to_owned).to_vec();
        settings.extend([port.to_string(), "--tls-auth-clients".to_owned(), "no".to_owned()]);
        for (name, file) in
            [("--tls-cert-file", certificate), ("--tls-key-file", key), ("--tls-ca-cert-file", authority)]
        {
            settings.extend([name.to_owned(), file.display().to_string()]);
        }
        settings
    })
    .await;
    let folder = TempDir::new().unwrap();
    let ca = write(folder.path(), "ours.pem", &ours.pem());
    let url = format!("rediss://localhost:{}", server.port());

    let trusting = transport(url.clone(), Some(ca.clone()));
    publish(&trusting, &[wake("etl", 1)]).await;
    assert_eq!(trusting.receive(&[queue("etl")], 1, SOON).await.unwrap().len(), 1);
    assert!(trusting.receive(&[queue("etl")], 1, std::time::Duration::from_millis(50)).await.unwrap().is_empty());

    let error = async |url: String, ca: Option<PathBuf>| {
        transport(url, ca).publish(&[wake("etl", 1)]).await.unwrap_err().to_string()
    };
    let stranger = write(folder.path(), "other.pem", &other.pem());
    assert_eq!(error(url, Some(stranger)).await, "redis refused: its certificate is of a CA that is not trusted");
    let by_number = format!("rediss://127.0.0.1:{}", server.port());
    assert_eq!(error(by_number, Some(ca)).await, "redis refused: its certificate is for another name");
    let plain = format!("redis://127.0.0.1:{}", server.port());
    assert_eq!(error(plain, None).await, "redis cannot be reached: the connection was lost");

    let no_ca = write(folder.path(), "empty.pem", "");
    let config = RedisConfig { url: "rediss://localhost".to_owned(), ca_file: Some(no_ca), ..RedisConfig::default() };
    let error = RedisTransport::new(config).unwrap_err().to_string();
    assert!(error.ends_with("empty.pem has no certificate, or one that cannot be used"), "{error}");
}
