use rustls_pki_types::pem::{PemObject, SectionKind};

use super::KeyError;

/// The first key in a PEM text. Other sections, such as the parameters that openssl writes, are passed over.
pub(crate) fn key_section(pem: &str) -> Result<(SectionKind, Vec<u8>), KeyError> {
    const KEYS: [SectionKind; 3] = [SectionKind::PrivateKey, SectionKind::EcPrivateKey, SectionKind::PublicKey];
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes()) {
        // The error of the parser quotes the text, so it goes no further.
        let (kind, der) = section.map_err(|_| KeyError::Pem)?;
        if KEYS.contains(&kind) {
            return Ok((kind, der));
        }
    }
    Err(KeyError::Pem)
}

/// A PKCS#8 private key as PEM.
pub(crate) fn pem_text(pkcs8: &[u8]) -> String {
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(pkcs8);
    let mut text = String::from("-----BEGIN PRIVATE KEY-----\n");
    for (at, letter) in body.chars().enumerate() {
        if at > 0 && at % 64 == 0 {
            text.push('\n');
        }
        text.push(letter);
    }
    text.push_str("\n-----END PRIVATE KEY-----\n");
    text
}
