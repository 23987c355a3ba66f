//! A throwaway CA and certificates for local use.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};

use crate::error::TlsError;
use crate::names::WORKER_URI;

/// How long the certificates are valid.
pub const DEV_CERTS_DAYS: u64 = 30;
/// Clocks of containers and virtual machines can be a little behind.
const BACKDATED: Duration = Duration::from_secs(3600);
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const NOTE: &str = "# Created by `tenure dev-certs` for local use. Throwaway: never use it in production.\n";

/// Makes a CA, a certificate for a server, one for a control plane that calls workers, and one for each worker, in
/// files of `dir`. Returns the files. Overwrites nothing.
pub fn dev_certs(dir: &Path, names: &[String], worker_ids: &[String]) -> Result<Vec<PathBuf>, TlsError> {
    for id in worker_ids {
        check_id(id)?;
    }
    let files = all(names, worker_ids)?;
    fs::create_dir_all(dir).map_err(|source| TlsError::Write { file: dir.to_owned(), source })?;
    let paths: Vec<PathBuf> = files.iter().map(|file| dir.join(&file.name)).collect();
    if let Some(file) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(TlsError::Exists { file: file.clone() });
    }
    for (file, path) in files.iter().zip(&paths) {
        write(path, file).map_err(|source| TlsError::Write { file: path.clone(), source })?;
    }
    Ok(paths)
}

struct NewFile {
    name: String,
    pem: String,
    mode: u32,
}

fn all(names: &[String], worker_ids: &[String]) -> Result<Vec<NewFile>, TlsError> {
    let ca_key = KeyPair::generate().map_err(make)?;
    // Two CAs with one name confuse those who look for the one that signed.
    let number: String = ca_key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut ca = params(&format!("CA {number}"), &[])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key).map_err(make)?;
    let mut files = Vec::from(pair("ca", ca_cert.pem(), ca_key.serialize_pem()));
    let ca = Issuer::new(ca, ca_key);

    let hosts: Vec<String> = LOCAL.iter().map(|name| (*name).to_owned()).chain(names.iter().cloned()).collect();
    files.extend(leaf(&ca, "server", params("server", &hosts)?, true, false)?);
    let mut client = params("control plane", &[])?;
    client.subject_alt_names = vec![uri("tenure://control-plane")?, dns("control-plane")?];
    files.extend(leaf(&ca, "client", client, false, true)?);
    for id in worker_ids {
        let mut worker = params(&format!("worker {id}"), &hosts)?;
        worker.subject_alt_names.extend([uri(&format!("{WORKER_URI}{id}"))?, dns(id)?]);
        files.extend(leaf(&ca, &format!("worker-{id}"), worker, true, true)?);
    }
    Ok(files)
}

fn params(who: &str, hosts: &[String]) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(hosts).map_err(make)?;
    params.distinguished_name.push(DnType::CommonName, format!("Tenure {who} (throwaway, local use only)"));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + now;
    params.not_before = now - BACKDATED;
    params.not_after = now + Duration::from_secs(DEV_CERTS_DAYS * 24 * 3600);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn leaf(
    ca: &Issuer<'_, KeyPair>,
    name: &str,
    mut params: CertificateParams,
    server: bool,
    client: bool,
) -> Result<[NewFile; 2], TlsError> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        [(server, ExtendedKeyUsagePurpose::ServerAuth), (client, ExtendedKeyUsagePurpose::ClientAuth)]
            .into_iter()
            .filter_map(|(wanted, usage)| wanted.then_some(usage))
            .collect();
    let key = KeyPair::generate().map_err(make)?;
    let cert = params.signed_by(&key, ca).map_err(make)?;
    Ok(pair(name, cert.pem(), key.serialize_pem()))
}

fn pair(name: &str, cert: String, key: String) -> [NewFile; 2] {
    [
        NewFile { name: format!("{name}.crt"), pem: cert, mode: 0o644 },
        NewFile { name: format!("{name}.key"), pem: key, mode: 0o600 },
    ]
}

fn write(path: &Path, file: &NewFile) -> std::io::Result<()> {
    let mut open = OpenOptions::new().write(true).create_new(true).mode(file.mode).open(path)?;
    open.write_all(NOTE.as_bytes())?;
    open.write_all(file.pem.as_bytes())
}

/// The id becomes a file name, a URI and a label. `localhost` is a name of every worker's certificate.
fn check_id(id: &str) -> Result<(), TlsError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = !id.is_empty() && id.len() <= 64 && id.chars().all(plain) && !id.starts_with('.') && id != "localhost";
    if good { Ok(()) } else { Err(TlsError::WorkerId { id: id.to_owned() }) }
}

fn uri(text: &str) -> Result<SanType, TlsError> {
    text.try_into().map(SanType::URI).map_err(make)
}

fn dns(text: &str) -> Result<SanType, TlsError> {
    text.try_into().map(SanType::DnsName).map_err(make)
}

fn make(error: rcgen::Error) -> TlsError {
    TlsError::Make { why: error.to_string() }
}
