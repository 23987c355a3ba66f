//! Archives of the writable layer of a sandbox.
//!
//! An archive is a tar file, compressed with zstd in frames of 1 MiB. Its paths begin with the name of a directory of
//! the layer. Files that the sandbox removed from the image are marked as in images of containers (`.wh.NAME`, and
//! `.wh..wh..opq` in a directory that hides the one below it). The last entry holds the SHA-256 of everything before it.
//! Setuid bits, extended attributes, devices, FIFOs and sockets are left out.

mod pack;
mod unpack;

use std::io::{self, Write};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use sha2::{Digest as _, Sha256};

pub(crate) use pack::pack;
pub(crate) use unpack::{unpack, verified};

/// The last entry of an archive.
const CHECKSUM: &str = ".tenure-sha256";

/// Marks a file that was removed from the image.
const WHITEOUT: &str = ".wh.";
/// Marks a directory that replaces the one of the image.
const OPAQUE: &str = ".wh..wh..opq";
/// How the kernel marks such a directory.
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";

const FRAME_BYTES: usize = 1 << 20;

/// Whether a directory of the writable layer belongs into an archive. The others are work of the kernel or shared memory.
fn is_kept(name: &[u8]) -> bool {
    match name {
        b"r" | b"pw" | b"pt" => true,
        [b'u', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Compresses what is written to it. Each frame is made in memory, so that an error of the file below stays an error.
#[derive(Debug)]
struct Frames<W: Write> {
    inner: W,
    buffer: Vec<u8>,
}

impl<W: Write> Frames<W> {
    fn new(inner: W) -> Self {
        Self { inner, buffer: Vec::with_capacity(FRAME_BYTES) }
    }

    fn finish(mut self) -> io::Result<W> {
        self.write_frame()?;
        Ok(self.inner)
    }

    fn write_frame(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.inner.write_all(&compress_to_vec(self.buffer.as_slice(), CompressionLevel::Fastest))?;
            self.buffer.clear();
        }
        Ok(())
    }
}

impl<W: Write> Write for Frames<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == FRAME_BYTES {
            self.write_frame()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hashes what is written to it.
struct Hashed<W> {
    inner: W,
    digest: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.inner.write(bytes)?;
        self.digest.update(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hex(digest: &Sha256) -> String {
    digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
