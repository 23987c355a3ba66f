//! The names in a certificate.

use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// The URI of a worker's certificate, before its id.
pub(crate) const WORKER_URI: &str = "tenure://worker/";

/// Who a certificate says its holder is. The CA vouches for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNames {
    pub dns: Vec<String>,
    pub uris: Vec<String>,
    /// For people and logs. Nothing is decided by it.
    pub common_name: Option<String>,
}

impl PeerNames {
    /// Of a certificate in DER. One that cannot be read has no names.
    pub fn of(cert: &[u8]) -> Self {
        let Ok((_, cert)) = parse_x509_certificate(cert) else {
            return Self::default();
        };
        let mut names = Self {
            common_name: cert.subject().iter_common_name().find_map(|name| name.as_str().ok()).map(str::to_owned),
            ..Self::default()
        };
        let Ok(Some(alternatives)) = cert.subject_alternative_name() else {
            return names;
        };
        for name in &alternatives.value.general_names {
            match name {
                GeneralName::DNSName(name) => names.dns.push((*name).to_owned()),
                GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                _ => {}
            }
        }
        names
    }

    /// Whether one of the names is in the list. Host names compare without case, URIs exactly.
    pub fn is_one_of(&self, allowed: &[String]) -> bool {
        let dns = |allowed: &String| self.dns.iter().any(|name| name.eq_ignore_ascii_case(allowed));
        allowed.iter().any(|allowed| dns(allowed) || self.uris.contains(allowed))
    }
}

/// The client at the other end of a connection whose handshake is done. `None` without a client certificate.
pub fn peer_names(connection: &ServerConnection) -> Option<PeerNames> {
    connection.peer_certificates()?.first().map(|cert| PeerNames::of(cert))
}

/// Whether a worker's certificate (DER) is for this worker: it has the URI `tenure://worker/<id>` or a host name whose
/// first label is the id. Compared exactly: two workers may have ids that differ by case only.
pub fn check_worker_binding(cert: &CertificateDer<'_>, worker_id: &str) -> bool {
    if worker_id.is_empty() {
        return false;
    }
    let names = PeerNames::of(cert);
    names.uris.iter().any(|uri| uri.strip_prefix(WORKER_URI) == Some(worker_id))
        || names.dns.iter().any(|name| name.split('.').next() == Some(worker_id))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn cert(dns: &[&str], uris: &[&str], common_name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let dns = dns.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names = dns.chain(uris).collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_is_bound_to_a_worker_by_uri_or_first_label() {
        type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a str, &'a str, bool);
        let table: &[Case<'_>] = &[
            (&[], &["tenure://worker/w-1"], "", "w-1", true),
            (&["w-1"], &[], "", "w-1", true),
            (&["w-1.workers.example"], &[], "", "w-1", true),
            (&["other.example", "w-1.example"], &[], "", "w-1", true),
            (&[], &["tenure://worker/a.b"], "", "a.b", true),
            (&[], &["tenure://worker/w-2"], "", "w-1", false),
            (&[], &["tenure://worker/w-10"], "", "w-1", false),
            (&[], &["tenure://worker/w-1/x"], "", "w-1", false),
            (&[], &["tenure://user/w-1"], "", "w-1", false),
            (&[], &["https://worker/w-1"], "", "w-1", false),
            (&["w-10.example"], &[], "", "w-1", false),
            (&["a.w-1.example"], &[], "", "w-1", false),
            (&["*.example"], &[], "", "w-1", false),
            (&["W-1.example"], &[], "", "w-1", false),
            (&["a.b"], &[], "", "a.b", false),
            (&["w-1x"], &["tenure://worker/"], "w-1", "w-1", false),
            (&[".example"], &["tenure://worker/"], "", "", false),
            (&[], &[], "w-1", "w-1", false),
        ];
        for (dns, uris, common_name, id, expected) in table {
            let cert = cert(dns, uris, common_name);
            assert_eq!(check_worker_binding(&cert, id), *expected, "{dns:?} {uris:?} {id:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_certificate() {
        let names = PeerNames::of(&cert(&["cp.example"], &["tenure://control-plane"], "cp"));
        assert_eq!(names.dns, ["cp.example"]);
        assert_eq!(names.uris, ["tenure://control-plane"]);
        assert_eq!(names.common_name.as_deref(), Some("cp"));
        assert_eq!(PeerNames::of(b"no certificate"), PeerNames::default());
    }

    #[test]
    fn a_list_of_allowed_names_is_for_alternative_names_only() {
        let names = PeerNames::of(&cert(&["cp.example"], &["tenure://control-plane"], "admin"));
        for (allowed, expected) in [
            ("cp.example", true),
            ("CP.example", true),
            ("tenure://control-plane", true),
            ("TENURE://control-plane", false),
            ("example", false),
            ("admin", false),
        ] {
            assert_eq!(names.is_one_of(&[allowed.to_owned()]), expected, "{allowed}");
        }
        assert!(!names.is_one_of(&[]));
    }
}
