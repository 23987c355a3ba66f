use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than any configuration or key needs: a device or a pipe that never ends is not read for ever.
const MAX_BYTES: u64 = 1 << 20;

/// The text of a file that is not too large.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::other("it is a folder"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    // Not the error of the conversion, which would carry the bytes along.
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_not_read_for_ever() {
        assert!(read(Path::new("/dev/zero")).unwrap_err().to_string().contains("more than 1 MiB"));
        assert!(read(Path::new("/")).unwrap_err().to_string().contains("folder"));
    }
}
