//! The host's libcuda, for copies between a card and the host (feature `parking`).

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

type Code = c_int;
type Address = u64;

/// `CUmemAccessDesc` {location {type, id}, flags}.
#[repr(C)]
struct Access {
    kind: c_int,
    device: c_int,
    flags: c_int,
}

/// Functions of libcuda, and a context on one card.
#[derive(Debug)]
pub struct Cuda {
    library: *mut c_void,
    device: c_int,
    stream: *mut c_void,
}

/// Pages of a file that copy engines reach.
#[derive(Debug)]
pub struct CudaPool {
    at: *mut c_void,
    length: usize,
}

fn other(text: String) -> io::Error {
    io::Error::other(text)
}

fn good(what: &str, code: Code) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(other(format!("{what}: CUDA's error {code}"))) }
}

/// The function of that name, of libcuda's own type for it.
macro_rules! function {
    ($cuda:expr, $name:literal, fn($($argument:ty),*)) => {{
        let at = $cuda.find($name)?;
        // SAFETY: libcuda's function of that name has this type (cuda.h), and the library stays
        // loaded for as long as the process lives.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Code>(at) }
    }};
}

impl Cuda {
    /// Loads it, and makes a context on the card with this UUID.
    ///
    /// # Errors
    /// When there is no such library or card, or CUDA refuses.
    pub fn new(uuid: &str) -> io::Result<Self> {
        // SAFETY: the name ends with a zero; libcuda's initializers run, as for any program.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(other("libcuda.so.1 cannot be loaded".to_owned()));
        }
        let mut cuda = Self { library, device: 0, stream: std::ptr::null_mut() };
        let (init, count) = (function!(cuda, c"cuInit", fn(u32)), function!(cuda, c"cuDeviceGetCount", fn(*mut c_int)));
        let uuid_of = function!(cuda, c"cuDeviceGetUuid_v2", fn(*mut u8, c_int));
        let retain = function!(cuda, c"cuDevicePrimaryCtxRetain", fn(*mut *mut c_void, c_int));
        let set_current = function!(cuda, c"cuCtxSetCurrent", fn(*mut c_void));
        let new_stream = function!(cuda, c"cuStreamCreate", fn(*mut *mut c_void, u32));
        let (mut devices, mut context) = (0, std::ptr::null_mut());
        // SAFETY: each is called as cuda.h says, with places for what it returns.
        unsafe {
            good("cuInit", init(0))?;
            good("cuDeviceGetCount", count(&raw mut devices))?;
            let is_it = |device: &c_int| {
                let mut bytes = [0_u8; 16];
                uuid_of(bytes.as_mut_ptr(), *device) == 0 && is_uuid(uuid, bytes)
            };
            cuda.device = (0..devices).find(is_it).ok_or_else(|| other(format!("CUDA knows no card {uuid}")))?;
            good("cuDevicePrimaryCtxRetain", retain(&raw mut context, cuda.device))?;
            good("cuCtxSetCurrent", set_current(context))?;
            good("cuStreamCreate", new_stream(&raw mut cuda.stream, 1))?;
        }
        Ok(cuda)
    }

    fn find(&self, name: &CStr) -> io::Result<*mut c_void> {
        let name: *const c_char = name.as_ptr();
        // SAFETY: the library is loaded, and the name ends with a zero.
        let at = unsafe { libc::dlsym(self.library, name) };
        if at.is_null() { Err(other("libcuda lacks a function: it is too old".to_owned())) } else { Ok(at) }
    }

    /// Maps the first `length` bytes of a file, and pins them.
    ///
    /// # Errors
    /// The kernel's or CUDA's.
    pub fn pool(&self, file: &File, length: usize) -> io::Result<CudaPool> {
        let register = function!(self, c"cuMemHostRegister_v2", fn(*mut c_void, usize, u32));
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: the kernel chooses the place; what is mapped there is only given to CUDA.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            good("cuMemHostRegister", register(at, length, 0))?;
            Ok(CudaPool { at, length })
        }
    }

    /// Copies memory that was exported to files, each with its place in the pool and its bytes; and
    /// lets it go.
    ///
    /// # Errors
    /// CUDA's.
    pub fn copy(&self, pool: &CudaPool, pieces: &[(OwnedFd, usize, usize)], is_out: bool) -> io::Result<()> {
        let reserve = function!(self, c"cuMemAddressReserve", fn(*mut Address, usize, usize, Address, u64));
        let import = function!(self, c"cuMemImportFromShareableHandle", fn(*mut u64, *mut c_void, c_int));
        let map = function!(self, c"cuMemMap", fn(Address, usize, usize, u64, u64));
        let allow = function!(self, c"cuMemSetAccess", fn(Address, usize, *const Access, usize));
        let unmap = function!(self, c"cuMemUnmap", fn(Address, usize));
        let release = function!(self, c"cuMemRelease", fn(u64));
        let give_up = function!(self, c"cuMemAddressFree", fn(Address, usize));
        let out = function!(self, c"cuMemcpyDtoHAsync_v2", fn(*mut c_void, Address, usize, *mut c_void));
        let back = function!(self, c"cuMemcpyHtoDAsync_v2", fn(Address, *const c_void, usize, *mut c_void));
        let wait = function!(self, c"cuStreamSynchronize", fn(*mut c_void));
        if pieces.iter().any(|(_, at, size)| at.checked_add(*size).is_none_or(|end| end > pool.length)) {
            return Err(other("a piece lies outside of the pool".to_owned()));
        }
        let access = Access { kind: 1, device: self.device, flags: 3 };
        let mut range = 0;
        // SAFETY: called as cuda.h says. All addresses of the host lie in the pool (checked above),
        // which outlives the copies, as they are waited for.
        unsafe {
            good("cuMemAddressReserve", reserve(&raw mut range, pool.length, 0, 0, 0))?;
            for (file, at, size) in pieces {
                let (mut memory, place) = (0, range + *at as u64);
                let descriptor = std::ptr::without_provenance_mut(usize::try_from(file.as_raw_fd()).unwrap_or(0));
                good("cuMemImportFromShareableHandle", import(&raw mut memory, descriptor, 1))?;
                good("cuMemMap", map(place, *size, 0, memory, 0))?;
                // The mapping keeps it.
                good("cuMemRelease", release(memory))?;
                good("cuMemSetAccess", allow(place, *size, &raw const access, 1))?;
                let host = pool.at.byte_add(*at);
                let code =
                    if is_out { out(host, place, *size, self.stream) } else { back(place, host, *size, self.stream) };
                good("cuMemcpyAsync", code)?;
            }
            good("cuStreamSynchronize", wait(self.stream))?;
            for (_, at, size) in pieces {
                good("cuMemUnmap", unmap(range + *at as u64, *size))?;
            }
            good("cuMemAddressFree", give_up(range, pool.length))
        }
    }
}

/// Returns whether a card's bytes are those of `GPU-...`.
fn is_uuid(uuid: &str, bytes: [u8; 16]) -> bool {
    let digits = uuid.trim_start_matches("GPU-").replace('-', "");
    digits == bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
}
