//! Bundles, as users upload them.

use std::collections::BTreeSet;

use tenure_bundle::{Archive, limits};

/// What is accepted stays in its place, within its limits, and is what the manifest says.
pub fn bundle(data: &[u8]) {
    let checked = Archive::open(data, data.len() as u64).and_then(|archive| archive.check().map(|()| archive));
    let archive = match checked {
        Ok(archive) => archive,
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 1_000 && !message.contains(['\n', '\0']), "{message:?}");
            return;
        }
    };
    let manifest = archive.manifest();
    assert!(manifest.files.len() <= limits::FILES && manifest.total_bytes() <= limits::TOTAL_BYTES);
    let (mut paths, mut total) = (BTreeSet::new(), 0);
    for index in 0.. {
        let Some(file) = archive.file(index).expect("it was read before") else { break };
        let parts: Vec<&str> = file.path.split('/').collect();
        assert!(parts.iter().all(|part| !part.is_empty() && *part != "." && *part != ".."), "{:?}", file.path);
        assert!(!file.path.contains(['\\', '\0']), "{:?}", file.path);
        assert!(file.content.len() as u64 <= limits::FILE_BYTES);
        total += file.content.len() as u64;
        assert!(paths.insert(file.path));
    }
    assert_eq!((paths.len(), total), (manifest.files.len(), manifest.total_bytes()));
    assert!(paths.contains(&manifest.entrypoint));
}
