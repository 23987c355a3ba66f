use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
/// The device is released with its last user.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How often a free device that another process was faster to take is given up.
const ATTEMPTS: usize = 64;

/// `struct loop_config` of the kernel (Linux 5.8).
#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64` of the kernel.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Makes a block device of a file. It lasts as long as it is open or mounted. Returns it with its path.
pub(crate) fn attach_loop_device(file: &File) -> io::Result<(File, String)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: the structure is plain data, for which zeros are valid.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.descriptor = file.as_raw_fd().cast_unsigned();
        config.info.flags = LO_FLAGS_AUTOCLEAR;
        // SAFETY: `config` is a valid loop_config that outlives the call, and the kernel only reads it.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::Error::other("no free loop device"))
}
