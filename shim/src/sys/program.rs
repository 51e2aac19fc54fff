//! The beginning of a program, without Rust's.

use super::ignore_broken_pipes;

/// Makes a function, which returns the exit code, the program of a crate without a `main` of
/// Rust's.
#[macro_export]
macro_rules! program {
    ($function:path) => {
        // SAFETY: C's start calls the one symbol of this name in a program.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> i32 {
            $crate::sys::prepare_process();
            $crate::sys::map_text();
            $function()
        }
    };
}

/// Maps what the linker has placed first of the program's text, which every process of it executes
/// (`text-order.ld`). Otherwise each 64 KiB of it are mapped by a fault of their own. Kernel 5.14.
pub fn map_text() {
    /// `.text.idle`, and of `.text.busy` what is for every container.
    const EXECUTED: usize = 26 << 16;
    unsafe extern "C" fn at_text(program: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> i32 {
        // SAFETY: the loader passes a structure that is good for this call, with as many headers as
        // it says.
        let (base, headers) = unsafe {
            let program = &*program;
            (program.dlpi_addr, std::slice::from_raw_parts(program.dlpi_phdr, usize::from(program.dlpi_phnum)))
        };
        let is_text = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        if let Some(text) = headers.iter().find(is_text) {
            let begin = usize::try_from(base + text.p_vaddr).unwrap_or_default() & !0xffff;
            // SAFETY: reads pages of the program's text into its own page table.
            unsafe { libc::madvise(begin as *mut _, EXECUTED, libc::MADV_POPULATE_READ) };
        }
        // The program is the first object, and the only one to look at.
        1
    }
    // SAFETY: the callback is as the function wants it.
    unsafe { libc::dl_iterate_phdr(Some(at_text), std::ptr::null_mut()) };
}

/// Does what matters of what Rust does before `main`: a write that nobody reads is an error only,
/// and no file gets the number of a standard stream that is not there.
pub fn prepare_process() {
    ignore_broken_pipes();
    for number in 0..3 {
        // SAFETY: integers only.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            // SAFETY: the kernel reads a C string. The lowest free number is this one.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
}
